"""The SQLite source treats every foreign key as a reference."""

import asyncio
import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Resolver, Session
from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.sources import from_sqlite
from mama_structs.sources.sqlite import SqliteDatabase, map_reference_fields, read_tables

SHOP = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT, referred_by INTEGER REFERENCES customers);
CREATE TABLE products (sku TEXT PRIMARY KEY, title TEXT, photo BLOB, weight REAL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER REFERENCES customers (id),
    product TEXT REFERENCES PRODUCTS,
    status TEXT
);
CREATE TABLE lines (order_id INTEGER REFERENCES orders, line INTEGER, PRIMARY KEY (order_id, line));
INSERT INTO customers VALUES (1, 'Ada', 'ada@example.org', NULL), (2, 'Bob', 'bob@example.org', 1);
INSERT INTO products VALUES ('ab-1', 'Lamp', x'0102', 9e999), ('ab-2', 'Desk', NULL, 12.5);
INSERT INTO orders VALUES (7, 2, 'ab-1', 'paid'), (8, 1, 'ab-2', 'open'), (9, 99, NULL, 'open');
"""


def made(path, script=SHOP):
    """Create a database from a script."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        connection.commit()
    return path


@pytest.fixture
def shop(tmp_path):
    return made(tmp_path / "shop.db")


async def test_foreign_keys_of_row_become_references(shop):
    async with Resolver([from_sqlite(shop)]) as resolver:
        answer = await resolver.enrich({"id": 7, "customer_id": 2, "product": "ab-1", "status": "paid"})

    assert {"customers:2": ("customers", "Bob"), "products:ab-1": ("products", "Lamp")} == {
        key: (entry["reference_type"], entry.get("name", entry.get("title")))
        for key, entry in answer["references"].items()
    }
    assert "<2 bytes>" == answer["references"]["products:ab-1"]["photo"]
    assert "inf" == answer["references"]["products:ab-1"]["weight"]


async def test_missing_row_is_a_failed_reference(shop):
    async with Resolver([from_sqlite(shop)]) as resolver:
        answer = await resolver.enrich({"orders": [{"id": 9, "customer_id": 99, "product": None}]})
        with pytest.raises(EntityNotFound):
            await resolver.fetch("customers:99")

    assert ("failed", "Entity not found") == (
        answer["references"]["customers:99"]["status"],
        answer["references"]["customers:99"]["error"],
    )


async def test_session_resolves_database_rows_two_levels_deep(shop):
    async with Session.open(sources=[from_sqlite(shop)]) as session:

        @session.with_references
        def order(order_id: int) -> dict:
            with contextlib.closing(sqlite3.connect(shop)) as connection:
                connection.row_factory = sqlite3.Row
                return dict(connection.execute("SELECT * FROM orders WHERE id = ?", (order_id,)).fetchone())

        answer = await order(7, include_references=True, reference_depth=2)

    assert ["customers:2", "products:ab-1", "customers:1"] == list(answer["references"])
    assert "Ada" == answer["references"]["customers:1"]["name"]


async def test_rows_of_one_page_are_fetched_together(shop, monkeypatch):
    opened = []
    rows = SqliteDatabase.fetch_rows
    monkeypatch.setattr(SqliteDatabase, "fetch_rows", lambda self, keys: opened.append(list(keys)) or rows(self, keys))
    async with Resolver([from_sqlite(shop)]) as resolver:
        page = {"orders": [{"id": 7, "customer_id": 2}, {"id": 8, "customer_id": 1}]}
        answer = await resolver.enrich(page, kind="list")

    assert 1 == len(opened)
    assert {"customers:1", "customers:2"} == set(answer["references"])


def test_ambiguous_column_is_qualified_by_its_table(tmp_path):
    """`parent_id` of categories and of comments reference different tables."""
    database = SqliteDatabase(
        made(
            tmp_path / "two.db",
            """
            CREATE TABLE categories (id INTEGER PRIMARY KEY, parent_id INTEGER REFERENCES categories);
            CREATE TABLE comments (id INTEGER PRIMARY KEY, parent_id INTEGER REFERENCES comments, in_id REFERENCES categories);
            """,
        )
    )
    with database.open_read_only() as connection:
        fields = map_reference_fields(read_tables(connection).values())

    assert {"categories.parent_id": "categories", "comments.parent_id": "comments", "in_id": "categories"} == fields


@pytest.mark.parametrize("key", ["'; DROP TABLE customers; --", '"', "1 OR 1=1", "1\0", "٣", "9" * 400, "-1", "01"])
async def test_id_is_never_part_of_a_statement(shop, key):
    async with Resolver([from_sqlite(shop)]) as resolver:
        await resolver.resolve([f"customers:{key}", f"products:{key}"])
        answer = await resolver.resolve(["customers:1"])

    assert "Ada" == answer["customers:1"]["name"]


async def test_table_and_column_names_are_quoted(tmp_path):
    path = made(
        tmp_path / "odd.db",
        '''
        CREATE TABLE "my ""table""" ("the key" TEXT PRIMARY KEY, [group] TEXT);
        CREATE TABLE "select" (id INTEGER PRIMARY KEY, "to" TEXT REFERENCES "my ""table""");
        INSERT INTO "my ""table""" VALUES ('k', 'g');
        INSERT INTO "select" VALUES (1, 'k');
        ''',
    )
    async with Resolver([from_sqlite(path)]) as resolver:
        answer = await resolver.enrich({"id": 1, "to": "k"})

    assert {'my "table":k': "g"} == {key: entry["group"] for key, entry in answer["references"].items()}


@pytest.mark.parametrize("content", [None, b"", b"no database", b"SQLite format 3\0" + bytes(90)])
def test_from_sqlite_rejects_file_that_is_not_a_database(tmp_path, content):
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidArgument):
        from_sqlite(path)
    assert (content is None) is not path.exists()


@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("CREATE TABLE a (id INTEGER PRIMARY KEY);", {}, "no foreign key"),
        (SHOP, {"tables": ["orders", "nothing"]}, "'nothing'"),
        (SHOP, {"tables": "orders"}, "collection"),
        (SHOP, {"tables": ["lines"]}, "'lines'"),
        ('CREATE TABLE "a:b" (id INTEGER PRIMARY KEY, b REFERENCES "a:b");', {}, "a:b"),
    ],
)
def test_from_sqlite_rejects_database_without_references(tmp_path, script, options, says):
    with pytest.raises(InvalidArgument, match=says):
        from_sqlite(made(tmp_path / "x.db", script), **options)


@pytest.mark.parametrize(
    "table",
    [
        "written (author_id REFERENCES authors, book_id REFERENCES books, PRIMARY KEY (author_id, book_id))",
        "log (at TEXT, author_id REFERENCES authors, book_id REFERENCES books)",
    ],
)
async def test_foreign_keys_of_table_without_primary_key_are_references(tmp_path, table):
    """A join table has no ids, but references both of its tables."""
    script = f"""
        CREATE TABLE authors (id INTEGER PRIMARY KEY, name); CREATE TABLE books (id INTEGER PRIMARY KEY, title);
        CREATE TABLE {table}; INSERT INTO authors VALUES (1, 'Ada'); INSERT INTO books VALUES (5, 'Notes');
    """
    source = from_sqlite(made(tmp_path / "x.db", script))
    async with Resolver([source]) as resolver:
        answer = await resolver.enrich({"rows": [{"author_id": 1, "book_id": 5}]})

    assert {"authors:1": "Ada", "books:5": "Notes"} == {
        key: entry.get("name", entry.get("title")) for key, entry in answer["references"].items()
    }
    assert {"authors", "books"} == source.scheme.types


async def test_virtual_table_of_missing_extension_is_skipped(tmp_path):
    path = made(tmp_path / "x.db", SHOP)
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA writable_schema = ON")
        row = ("table", "map", "map", 0, "CREATE VIRTUAL TABLE map USING from_far_away(x)")
        writer.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
        writer.commit()
    async with Resolver([from_sqlite(path)]) as resolver:
        answer = await resolver.enrich({"customer_id": 2})

    assert "Bob" == answer["references"]["customers:2"]["name"]


async def test_source_does_not_write_or_lock_database(shop):
    before = shop.read_bytes()
    async with Resolver([from_sqlite(shop)]) as resolver:
        with contextlib.closing(sqlite3.connect(shop)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            await resolver.resolve(["customers:1"])
            writer.rollback()

    assert before == shop.read_bytes()


names = st.sampled_from(["a", "b", "c", "d"])


@given(
    foreign=st.dictionaries(st.tuples(names, st.integers(0, 2)), names, min_size=1, max_size=8),
    rows=st.integers(1, 4),
    data=st.data(),
)
def test_foreign_keys_resolve_to_joined_rows_in_any_schema(tmp_path_factory, foreign, rows, data):
    tables = sorted({name for (name, _), target in foreign.items() for name in (name, target)})
    columns = {
        table: {f"{table}_{number}": target for (name, number), target in foreign.items() if name == table}
        for table in tables
    }
    path = tmp_path_factory.mktemp("any") / "any.db"
    values = {}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in tables:
            own = "".join(f', {column} INTEGER REFERENCES "{target}"' for column, target in columns[table].items())
            connection.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, label TEXT{own})')
        for table in tables:
            for number in range(1, rows + 1):
                row = {"id": number, "label": f"{table}{number}"}
                row |= {column: data.draw(st.none() | st.integers(1, rows)) for column in columns[table]}
                marks = ", ".join("?" * len(row))
                connection.execute(f'INSERT INTO "{table}" VALUES ({marks})', list(row.values()))
                values[f"{table}:{number}"] = row
        connection.commit()

    async def run():
        async with Resolver([from_sqlite(path)]) as resolver:
            for key, row in values.items():
                table = key.partition(":")[0]
                answer = await resolver.enrich({**row, "type": table})
                named = {f"{target}:{row[column]}" for column, target in columns[table].items() if row[column]}
                assert {one: values[one]["label"] for one in named - {key}} == {
                    one: entry["label"] for one, entry in answer["references"].items() if one != key
                }

    asyncio.run(run())
