-- Whose memories or rows there are, and the number of the last change of each: its row is locked by who writes there.
CREATE TABLE namespaces (
    namespace text COLLATE "C" PRIMARY KEY,
    change bigint NOT NULL DEFAULT 0
);

-- The last changes of each namespace, with what a writer finds its own by that got no answer.
CREATE TABLE changes (
    namespace text COLLATE "C" NOT NULL,
    change bigint NOT NULL,
    token uuid NOT NULL,
    PRIMARY KEY (namespace, change)
);
