"""Driver of Chroma's embedded client, with a collection per namespace and cosine distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import chromadb

from _stores import NO_PAST, embedded


class Driver:
    lacks: ClassVar = {
        "time_travel": NO_PAST,
        "two_writers": "its client on a directory is for one process, says its documentation; for more it has a server",
    }

    def open(self, location: str) -> None:
        settings = chromadb.config.Settings(anonymized_telemetry=False)
        self.client = chromadb.PersistentClient(location, settings=settings)

    def some(self, namespace: str) -> chromadb.Collection:
        # Encode the namespace, because names of collections must be ASCII.
        name = f"ns-{namespace.encode().hex()}"
        return self.client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def save(self, namespace: str, key: str, text: str, metadata: Mapping[str, str]) -> None:
        self.some(namespace).add(ids=[key], embeddings=embedded([text]), documents=[text], metadatas=[dict(metadata)])

    def get(self, namespace: str, key: str) -> str | None:
        return next(iter(self.some(namespace).get(ids=[key])["documents"]), None)

    def all(self, namespace: str) -> list[tuple[str, str]]:
        found = self.some(namespace).get()
        return list(zip(found["ids"], found["documents"], strict=True))

    def search(
        self, namespace: str, query: str, *, limit: int, where: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        conditions = [{name: value} for name, value in (where or {}).items()]
        given = conditions[0] if len(conditions) == 1 else {"$and": conditions} if conditions else None
        found = self.some(namespace).query(query_embeddings=embedded([query]), n_results=limit, where=given)
        return list(zip(found["ids"][0], found["documents"][0], strict=True))

    def replace(self, namespace: str, key: str, text: str) -> None:
        self.some(namespace).update(ids=[key], embeddings=embedded([text]), documents=[text])

    def delete(self, namespace: str, key: str) -> None:
        self.some(namespace).delete(ids=[key])

    def close(self) -> None:
        # The client has no close method. It is closed when its process ends.
        pass
