-- The memories of all namespaces. Every key begins with the namespace, so that tables can be distributed or partitioned
-- by it; no table refers to another one. Texts that are compared have the order of their code points.

-- What is known of a namespace as a whole; lengths are in tenths of a term.
CREATE TABLE memory_heads (
    namespace text COLLATE "C" PRIMARY KEY,
    embedder text NOT NULL,
    next_node bigint NOT NULL DEFAULT 0,
    types bigint[] NOT NULL DEFAULT '{0,0,0,0}',
    length bigint NOT NULL DEFAULT 0,
    links bigint NOT NULL DEFAULT 0,
    pieces bigint NOT NULL DEFAULT 0,
    -- Whether vectors are kept as halves of their bytes; never changed.
    half boolean NOT NULL DEFAULT false,
    maintained_at bigint NOT NULL DEFAULT 0,
    -- The number of the rules by which the terms were found.
    analysis integer NOT NULL
);

-- The entry is the truth; everything else of a memory follows from it.
CREATE TABLE memories (
    namespace text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    entry bytea NOT NULL,
    created bigint NOT NULL,
    type smallint NOT NULL,
    topic text COLLATE "C",
    scripts smallint NOT NULL,
    asking smallint NOT NULL,
    ends bigint NOT NULL,
    origin smallint NOT NULL,
    trust smallint NOT NULL,
    wording bigint NOT NULL,
    length integer NOT NULL,
    terms text[] COLLATE "C" NOT NULL,
    counts smallint[] NOT NULL,
    topic_terms text[] COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, node),
    UNIQUE (namespace, id)
);
CREATE INDEX memories_by_time ON memories (namespace, created, node);
CREATE INDEX memories_by_topic ON memories (namespace, topic, created, node) WHERE topic IS NOT NULL;
-- Those that are not valid for ever: mostly none.
CREATE INDEX memories_ending ON memories (namespace, ends, node) WHERE ends < 9223372036854775807;
CREATE INDEX memories_by_wording ON memories (namespace, wording, node);

-- Vectors by the embedder that made them, a row for each piece of a text. They are read more often than anything else:
-- one of up to 2,000 numbers stays in its row.
CREATE TABLE pieces (
    namespace text COLLATE "C" NOT NULL,
    embedder text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    place integer NOT NULL,
    vector vector,
    half halfvec,
    CHECK (num_nonnulls(vector, half) = 1),
    PRIMARY KEY (namespace, embedder, node, place)
) WITH (toast_tuple_target = 8160);

-- Our own terms, how much each counts in a memory, and that memory's length: a ranking reads nothing but this index.
CREATE TABLE terms (
    namespace text COLLATE "C" NOT NULL,
    term text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    count smallint NOT NULL,
    length integer NOT NULL,
    PRIMARY KEY (namespace, term, node) INCLUDE (count, length)
);

CREATE TABLE mentions (
    namespace text COLLATE "C" NOT NULL,
    mention text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    PRIMARY KEY (namespace, mention, node)
);
CREATE INDEX mentions_of_node ON mentions (namespace, node);

CREATE TABLE links (
    namespace text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    source bigint NOT NULL,
    target bigint NOT NULL,
    type smallint NOT NULL,
    creator smallint NOT NULL,
    confidence real NOT NULL,
    created bigint NOT NULL,
    word text COLLATE "C" NOT NULL,
    entry bytea NOT NULL,
    PRIMARY KEY (namespace, id)
);
CREATE INDEX links_by_source ON links (namespace, source);
CREATE INDEX links_by_target ON links (namespace, target);

-- Texts of evidence by their hash, as long as a memory names them.
CREATE TABLE texts (
    namespace text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    text bytea NOT NULL,
    PRIMARY KEY (namespace, digest)
);
CREATE TABLE text_uses (
    namespace text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    PRIMARY KEY (namespace, digest, node)
);
CREATE INDEX text_uses_of_node ON text_uses (namespace, node);

CREATE TABLE notes (
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- What each of the last changes touched, and whether it did more than to add memories.
CREATE TABLE touched (
    namespace text COLLATE "C" NOT NULL,
    change bigint NOT NULL,
    nodes bigint[] NOT NULL,
    more boolean NOT NULL,
    PRIMARY KEY (namespace, change)
);
