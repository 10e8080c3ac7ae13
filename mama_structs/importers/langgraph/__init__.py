"""Importer of items in LangGraph stores."""
