"""What Hypothesis calls when it is imported; at no cost where it never is."""

from __future__ import annotations


def register() -> None:
    """Register strategies for `EntityId` and `EntityType`; they are built when first drawn from."""
    from hypothesis import strategies as st  # noqa: PLC0415 - Hypothesis is an extra

    from mama_structs.structs.ids import EntityId, EntityType  # noqa: PLC0415 - only with Hypothesis

    def entity_ids(_: type[EntityId]) -> st.SearchStrategy[EntityId]:
        from mama_structs.testing import strategies  # noqa: PLC0415 - only when drawn from

        return strategies.entity_ids()

    def entity_types(_: type[EntityType]) -> st.SearchStrategy[EntityType]:
        from mama_structs.testing import strategies  # noqa: PLC0415 - only when drawn from

        return strategies.entity_types()

    st.register_type_strategy(EntityId, entity_ids)
    st.register_type_strategy(EntityType, entity_types)
