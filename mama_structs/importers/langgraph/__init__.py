"""Import of the tables of LangGraph's stores."""
