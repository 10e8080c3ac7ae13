"""Entry point that Hypothesis calls during its own import. The strategies are imported only when they are used."""

from __future__ import annotations

from mama_structs._internal.lazy_import import call_when_loaded


def register() -> None:
    """Register the strategies for `EntityId` and `EntityType` when the module of these classes is imported."""
    call_when_loaded("mama_structs.structs.ids", _register)


def _register() -> None:
    from hypothesis import strategies as st  # noqa: PLC0415 - Hypothesis is an extra

    from mama_structs.structs.ids import EntityId, EntityType  # noqa: PLC0415 - already loaded when this runs

    def entity_ids(_: type[EntityId]) -> st.SearchStrategy[EntityId]:
        from mama_structs.testing import strategies  # noqa: PLC0415 - imported when the strategy is used

        return strategies.entity_ids()

    def entity_types(_: type[EntityType]) -> st.SearchStrategy[EntityType]:
        from mama_structs.testing import strategies  # noqa: PLC0415 - imported when the strategy is used

        return strategies.entity_types()

    st.register_type_strategy(EntityId, entity_ids)
    st.register_type_strategy(EntityType, entity_types)
