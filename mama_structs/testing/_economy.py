"""The second half of a generated world: power, markets, stakes and permissions."""

from __future__ import annotations

from typing import Any

from mama_structs.testing._draft import COLLIDING, Draft
from mama_structs.testing._schema import ALL_PERMISSIONS
from mama_structs.testing._struct_types import GENERATORS


def trade(draft: Draft) -> None:
    """Draw what settled players do with power and with each other."""
    _substations(draft)
    _markets(draft)
    _infusions(draft)
    _permissions(draft)
    _applications(draft)
    _grid_of_substations(draft)


def _substations(draft: Draft) -> None:
    for number in range(1, draft.substations + 1):
        owner = f"1-{draft.guild_owner(number)}" if number <= draft.guilds else draft.some_player()
        substation_id = f"4-{number}"
        draft.world.tables["substation"][substation_id] = {
            "id": substation_id,
            "owner": owner,
            "creator": draft.creator(owner),
            "name": draft.name(),
            "pfp": "",
        }
        if number <= draft.guilds:
            _allocate(draft, "automated", f"3-{number}", substation_id, owner)
        else:
            _allocate(draft, draft.rng.choice(("static", "dynamic")), owner, substation_id, owner)


def _allocate(draft: Draft, kind: str, source: str, destination: str, controller: str) -> int:
    draft.allocations += 1
    allocation_id = f"6-{draft.allocations}"
    draft.world.tables.setdefault("allocation", {})[allocation_id] = {
        "id": allocation_id,
        "type": kind,
        "sourceObjectId": source,
        "index": str(draft.allocations),
        "destinationId": destination,
        "creator": draft.creator(controller),
        "controller": controller,
    }
    draft.grid(allocation_id, power=1000 * draft.rng.randrange(1, 500))
    return draft.allocations


def _markets(draft: Draft) -> None:
    providers = draft.world.tables.setdefault("provider", {})
    agreements = draft.world.tables.setdefault("agreement", {})
    for number in range(1, draft.guilds + 1):
        owner = f"1-{draft.guild_owner(number)}"
        provider_id = f"10-{number}"
        providers[provider_id] = {
            "id": provider_id,
            "index": str(number),
            "substationId": f"4-{number}",
            "rate": {"denom": draft.rng.choice(("ualpha", f"uguild.0-{number}")), "amount": "100"},
            "accessPolicy": draft.rng.choice(("openMarket", "guildMarket", "closedMarket")),
            "capacityMinimum": "1",
            "capacityMaximum": "1000000",
            "durationMinimum": "10",
            "durationMaximum": "100000",
            "providerCancellationPenalty": "0.100000000000000000",
            "consumerCancellationPenalty": "0.050000000000000000",
            "creator": draft.creator(owner),
            "owner": owner,
        }
        for _ in range(draft.rng.randrange(1, 4)):
            destination = f"4-{draft.rng.randint(draft.guilds + 1, draft.substations)}"
            consumer = draft.world.tables["substation"][destination]["owner"]
            allocation = _allocate(draft, "providerAgreement", f"4-{number}", destination, consumer)
            # An agreement has the index of the allocation that carries it.
            agreements[f"11-{allocation}"] = {
                "id": f"11-{allocation}",
                "providerId": provider_id,
                "allocationId": f"6-{allocation}",
                "capacity": str(draft.rng.randrange(1, 1_000_000)),
                "startBlock": str(draft.rng.randrange(1, 500_000)),
                "endBlock": str(draft.rng.randrange(500_000, 2_000_000)),
                "creator": draft.creator(consumer),
                "owner": consumer,
            }


def _infusions(draft: Draft) -> None:
    for player in draft.world.tables["player"].values():
        if draft.chance(0.4):
            _infuse(draft, player, "reactor", f"3-{draft.rng.randint(1, draft.guilds)}")
    for struct in draft.world.tables["struct"].values():
        if int(struct["type"]) in GENERATORS:
            _infuse(draft, draft.world.tables["player"][struct["owner"]], "struct", struct["id"])


def _infuse(draft: Draft, player: dict[str, Any], kind: str, destination: str) -> None:
    address = player["primaryAddress"]
    fuel = str(1000 * draft.rng.randrange(1, 5000))
    draft.world.tables.setdefault("infusion", {})[f"{destination}/{address}"] = {
        "destinationType": kind,
        "destinationId": destination,
        "fuel": fuel,
        "power": fuel,
        "commission": "0.040000000000000000",
        "playerId": player["id"],
        "address": address,
        "ratio": "1",
        "defusing": "0",
    }


def _permissions(draft: Draft) -> None:
    permissions = draft.world.tables.setdefault("permission", {})
    ranks = draft.world.tables.setdefault("guild_rank_permission", {})
    for address in draft.world.tables["address"]:
        permissions[f"8-{address}@0"] = ALL_PERMISSIONS
    for substation in draft.world.tables["substation"].values():
        permissions[f"{substation['id']}@{substation['owner']}"] = ALL_PERMISSIONS
    for index in COLLIDING:
        permissions[f"1-2@1-{index}"] = "4"
        permissions[f"1-{index}@1-2"] = "2"
    for _ in range(draft.players // 4):
        permissions[f"{draft.some_player()}@{draft.some_player()}"] = str(2 ** draft.rng.randrange(25))
    for number in range(1, draft.guilds + 1):
        guild_id = f"0-{number}"
        permissions[f"{guild_id}@1-{draft.guild_owner(number)}"] = ALL_PERMISSIONS
        for object_id in (f"3-{number}", f"4-{number}"):
            for bit in sorted(draft.rng.sample(range(25), 3)):
                ranks[f"{object_id}/{guild_id}/{bit:02}"] = {
                    "objectId": object_id,
                    "guildId": guild_id,
                    "permissions": str(2**bit),
                    "rank": str(draft.rng.randrange(1, 102)),
                }


def _applications(draft: Draft) -> None:
    applications = draft.world.tables.setdefault("guild_membership_application", {})
    for player in draft.world.tables["player"].values():
        if player["guildId"] or not (player["index"] == str(draft.players) or draft.chance(0.5)):
            continue
        guild = draft.rng.randint(1, draft.guilds)
        invited = draft.chance(0.3)
        applications[f"{player['id']}@0-{guild}"] = {
            "guildId": f"0-{guild}",
            "playerId": player["id"],
            "joinType": "invite" if invited else "request",
            "registrationStatus": draft.rng.choice(("proposed", "denied", "revoked")),
            "proposer": f"1-{draft.guild_owner(guild)}" if invited else player["id"],
            "substationId": f"4-{guild}",
        }


def _grid_of_substations(draft: Draft) -> None:
    connected: dict[str, int] = {}
    for player in draft.world.tables["player"].values():
        connected[player["substationId"]] = connected.get(player["substationId"], 0) + 1
    for substation_id in draft.world.tables["substation"]:
        draft.grid(
            substation_id,
            capacity=2_000_000,
            load=500_000,
            connectionCapacity=50_000,
            connectionCount=connected.get(substation_id, 0),
        )
