"""The fake node behaves like a real node, checked over real sockets."""

import base64

import pytest

from mama_structs.testing import FakeClock, FakeNode

NOT_FOUND = {"code": 2, "message": "codespace structs code 1050: object not found", "details": []}
NOT_IMPLEMENTED = {"code": 12, "message": "Not Implemented", "details": []}


@pytest.mark.parametrize("path", ["/", "/structs", "/structs/player/1-1/x", "/structs/planets", "/structs/blockheight"])
async def test_unknown_path_is_not_implemented(get, path):
    """Paths that the chain does not have are answered with 501."""
    reply = await get(path)

    assert (501, NOT_IMPLEMENTED) == (reply.status, reply.json)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_method_other_than_get_is_not_implemented(get, method):
    reply = await get("/structs/player/1-11", method=method)

    assert (501, NOT_IMPLEMENTED) == (reply.status, reply.json)


async def test_values_have_the_format_of_the_gateway(get):
    """Numbers are texts, zeros are included, and a missing reference is the empty text."""
    player = (await get("/structs/player/1-11")).json
    planet = (await get(f"/structs/planet/{player['Player']['planetId']}")).json

    assert "11" == player["Player"]["index"]
    assert 15 == len(player["gridAttributes"])
    assert {str} == {type(value) for value in player["gridAttributes"].values()}
    assert "0" == player["gridAttributes"]["fuel"]
    assert {"denom", "amount"} == player["playerInventory"]["rocks"].keys()
    assert "" in planet["Planet"]["water"]


@pytest.mark.parametrize(
    ("entity_id", "keys"),
    [
        ("0-1", ["Guild"]),
        ("1-11", ["Player", "gridAttributes", "playerInventory"]),
        ("2-1", ["Planet", "gridAttributes", "planetAttributes"]),
        ("3-1", ["Reactor", "gridAttributes"]),
        ("4-1", ["Substation", "gridAttributes"]),
        ("5-1", ["Struct", "structAttributes", "gridAttributes", "structDefenders"]),
        ("6-1", ["Allocation", "gridAttributes"]),
        ("9-11", ["Fleet"]),
        ("10-1", ["Provider", "gridAttributes"]),
        ("agreement", ["Agreement"]),
    ],
)
async def test_only_single_answers_include_attributes(node, get, entity_id, keys):
    """Lists have bare records. Four types have no grid attributes."""
    kind = {"0": "guild", "1": "player", "2": "planet", "3": "reactor", "4": "substation", "5": "struct",
            "6": "allocation", "9": "fleet", "10": "provider"}.get(entity_id.split("-")[0], entity_id)  # fmt: skip
    entity_id = node.data.ids("agreement")[0] if kind == "agreement" else entity_id
    one = (await get(f"/structs/{kind}/{entity_id}")).json
    many = (await get(f"/structs/{kind}?pagination.limit=1000")).json

    assert keys == list(one)
    assert one[keys[0]] in many[keys[0]]
    assert {keys[0], "pagination"} | ({"status"} if kind == "allocation" else set()) == many.keys()


async def test_infusions_addresses_and_struct_types_have_special_routes(node, get):
    """Infusions have two keys, address answers are flat, struct type ids are bare numbers."""
    infusion = node.data.rows("infusion")[0]
    address = node.data.rows("address")[0]

    assert {"Infusion": infusion} == (
        await get(f"/structs/infusion/{infusion['destinationId']}/{infusion['address']}")
    ).json
    assert address == (await get(f"/structs/address/{address['address']}")).json
    assert "14" == (await get("/structs/struct_type/14")).json["StructType"]["id"]
    assert [] == (await get("/structs/infusion?pagination.limit=1")).json["status"]
    assert {"address", "pagination"} == (await get("/structs/address?pagination.limit=1")).json.keys()


@pytest.mark.parametrize(
    "path",
    [
        "player/1-4000", "player/abc", "player/2-1", "player/", "player/1-0", "player/01-11", "planet/2-9999", "infusion/3-1/x",
        "struct_type/99", "fleet_by_index/4000", "guild_membership_application/0-1/1-11",
    ],
)  # fmt: skip
async def test_unknown_or_malformed_id_is_answered_with_500(get, path):
    """The chain uses 500 with code 2 instead of 404."""
    reply = await get(f"/structs/{path}")

    assert (500, NOT_FOUND) == (reply.status, reply.json)


@pytest.mark.parametrize(("status", "code"), [(500, 2), (404, 5), (200, 2)])
async def test_not_found_status_is_configurable(node, get, status, code):
    """Clients must handle 404, and 200 as in the documentation of the chain."""
    node.not_found_status = status
    reply = await get("/structs/player/1-4000")

    assert (status, NOT_FOUND | {"code": code}) == (reply.status, reply.json)


@pytest.mark.parametrize(
    "path", ["struct_type/abc", "struct_type/-1", "fleet_by_index/x", "struct_type/18446744073709551616"]
)
async def test_invalid_number_in_path_is_answered_with_400(get, path):
    reply = await get(f"/structs/{path}")

    assert (400, 3) == (reply.status, reply.json["code"])


async def test_unknown_address_has_null_player(get):
    """It is not an error: its player is 1-0."""
    reply = await get("/structs/address/structs1nobody")

    assert 200 == reply.status
    assert {"address": "structs1nobody", "playerId": "1-0", "permissions": "0"} == reply.json


async def test_permission_and_attribute_routes_never_answer_not_found(get):
    """Unknown permissions and attributes are zero, unknown owners have empty lists."""
    assert {"gridRecord": {"attributeId": "99-1-9", "value": "0"}} == (await get("/structs/grid/99-1-9")).json
    assert {"attribute": "0"} == (await get("/structs/struct_attribute/5-9999/health")).json
    assert {"attribute": "0"} == (await get("/structs/planet_attribute/2-9999/planetaryShield")).json
    assert {"permissionRecord": {"permissionId": "9-9@1-1", "value": "0"}} == (
        await get("/structs/permission/9-9%401-1")
    ).json
    for path in ("agreement_by_provider/10-99", "allocation_by_source/1-999", "infusion_by_destination/3-999"):
        assert {"next_key": None, "total": "0"} == (await get(f"/structs/{path}")).json["pagination"]


async def test_unknown_attribute_name_reads_first_attribute(node, get):
    health = node.data.envelope("5-1")["structAttributes"]["health"]
    status = node.data.envelope("5-1")["structAttributes"]["status"]

    assert {"attribute": status} == (await get("/structs/struct_attribute/5-1/status")).json
    assert {"attribute": health} == (await get("/structs/struct_attribute/5-1/helth")).json
    assert {"attribute": node.data.envelope("2-1")["planetAttributes"]["planetaryShield"]} == (
        await get("/structs/planet_attribute/2-1/nonsense")
    ).json


async def test_list_without_limit_has_hundred_rows_and_total(client_of):
    """With a limit the total is 0 unless requested."""
    async with FakeNode.world(players=150) as node, client_of(node) as get:
        default = (await get("/structs/player")).json
        limited = (await get("/structs/player?pagination.limit=10")).json
        counted = (await get("/structs/player?pagination.limit=1&pagination.count_total=true")).json

    assert (100, "152") == (len(default["Player"]), default["pagination"]["total"])
    assert (10, "0") == (len(limited["Player"]), limited["pagination"]["total"])
    assert (1, "152") == (len(counted["Player"]), counted["pagination"]["total"])


async def test_next_key_is_base64_of_next_id(get):
    """Rows are in byte order."""
    page = (await get("/structs/player?pagination.limit=4")).json

    assert ["1-1", "1-10", "1-11", "1-12"] == [row["id"] for row in page["Player"]]
    assert b"1-13" == base64.b64decode(page["pagination"]["next_key"])


async def test_struct_type_page_keys_have_eight_bytes(get):
    """Struct types are in numeric order."""
    page = (await get("/structs/struct_type?pagination.limit=9")).json

    assert (10).to_bytes(8, "big") == base64.b64decode(page["pagination"]["next_key"])


async def test_last_page_has_no_next_key_and_page_by_key_has_no_total(node, get):
    last = node.data.ids("player")[-1]
    key = base64.b64encode(last.encode()).decode()
    page = (await get("/structs/player", params={"pagination.key": key, "pagination.count_total": "true"})).json

    assert [last] == [row["id"] for row in page["Player"]]
    assert {"next_key": None, "total": "0"} == page["pagination"]


@pytest.mark.parametrize(("path", "code"), [("player", 13), ("permission", 2), ("grid", 2), ("struct_attribute", 2)])
async def test_offset_with_key_is_an_error(get, path, code):
    reply = await get(f"/structs/{path}?pagination.key=MS0x&pagination.offset=1&pagination.limit=1")

    assert (500, code) == (reply.status, reply.json["code"])
    assert "either offset or key is expected, got both" in reply.json["message"]


@pytest.mark.parametrize(
    "query", ["limit=abc", "limit=-1", "limit=1.0", "offset=x", "count_total=maybe", "reverse=2", "key=%21", "key=MS0"]
)
async def test_invalid_query_parameter_is_answered_with_400(get, query):
    reply = await get(f"/structs/player?pagination.{query}")

    assert (400, 3) == (reply.status, reply.json["code"])


async def test_unknown_query_parameters_are_ignored(get):
    assert (await get("/structs/player?limit=abc&x=1")).json == (await get("/structs/player")).json


@pytest.mark.parametrize(
    ("path", "key", "belongs"),
    [
        ("planet_by_player/1-11", "Planet", lambda row: row["owner"] == "1-11"),
        ("address_by_player/1-11", "address", lambda row: row["playerId"] == "1-11"),
        ("permission/player/1-19", "permissionRecords", lambda row: row["permissionId"].endswith("@1-19")),
        ("permission/object/1-19", "permissionRecords", lambda row: row["permissionId"].startswith("1-19@")),
    ],
)
async def test_post_filtered_route_filters_after_paging(get, path, key, belongs):
    """The limit counts unfiltered rows, so pages may be empty and still have a next key."""
    rows, sizes, query = [], [], {"pagination.limit": "5"}
    while True:
        page = (await get(f"/structs/{path}", params=query)).json
        rows += page[key]
        sizes.append(len(page[key]))
        if page["pagination"]["next_key"] is None:
            break
        query["pagination.key"] = page["pagination"]["next_key"]

    assert rows
    assert all(map(belongs, rows))
    assert 0 in sizes[:-1]


async def test_post_filtered_total_counts_whole_store(node, get):
    page = (await get("/structs/planet_by_player/1-4000?pagination.count_total=1&pagination.limit=1")).json

    assert [] == page["Planet"]
    assert str(len(node.data.ids("planet"))) == page["pagination"]["total"]


async def test_indexed_route_pages_through_matching_rows_only(node, get):
    provider = node.data.rows("agreement")[0]["providerId"]
    expected = [row for row in node.data.rows("agreement") if row["providerId"] == provider]
    page = (await get(f"/structs/agreement_by_provider/{provider}?pagination.limit=1000")).json
    first = (await get(f"/structs/agreement_by_provider/{provider}?pagination.limit=1")).json

    assert expected == page["Agreement"]
    assert expected[:1] == first["Agreement"]
    for route, name, field in (
        ("allocation_by_source", "allocation", "sourceObjectId"),
        ("allocation_by_destination", "allocation", "destinationId"),
        ("infusion_by_destination", "infusion", "destinationId"),
    ):
        wanted = node.data.rows(name)[0][field]
        answer = (await get(f"/structs/{route}/{wanted}?pagination.limit=1000")).json
        assert [row for row in node.data.rows(name) if row[field] == wanted] == next(iter(answer.values()))
        assert [] == answer["status"]


async def test_fleets_and_agreements_share_index_with_owner_and_allocation(node, get):
    """The command ship is in no slot."""
    fleet = (await get("/structs/fleet_by_index/11")).json["Fleet"]
    agreement = node.data.rows("agreement")[0]

    assert ("9-11", "1-11") == (fleet["id"], fleet["owner"])
    assert agreement["id"].split("-")[1] == agreement["allocationId"].split("-")[1]
    assert {"onStation", "away"} == {row["status"] for row in node.data.rows("fleet")}
    assert fleet["commandStruct"]
    assert fleet["commandStruct"] not in fleet["space"]


async def test_every_answer_has_a_height_that_advances(node, get):
    """The key of the blockheight route is that of the chain, not of its documentation."""
    before = (await get("/structs/player/1-11")).headers["Grpc-Metadata-X-Cosmos-Block-Height"]
    node.advance()
    node.advance(blocks=2)
    after = await get("/blockheight")

    assert int(before) + 3 == int(after.headers["Grpc-Metadata-X-Cosmos-Block-Height"])
    assert {"blockHeight": str(int(before) + 3)} == after.json
    latest = (await get("/cosmos/base/tendermint/v1beta1/blocks/latest")).json
    assert after.json["blockHeight"] == latest["block"]["header"]["height"]


async def test_height_follows_clock_with_block_time(client_of):
    clock = FakeClock(start=100)
    async with FakeNode.world(height=7, block_time=2.0, clock=clock.now) as node, client_of(node) as get:
        clock.advance(5.0)

        assert {"blockHeight": "9"} == (await get("/blockheight")).json
        assert 9 == node.height


async def test_other_routes_have_their_own_formats(node, get):
    """Covers ranks, applications, collateral addresses, signatures and parameters."""
    rank = node.data.rows("guild_rank_permission")[0]
    ranks = (await get(f"/structs/guild_rank_permission/object/{rank['objectId']}?pagination.limit=2")).json
    of_guild = (await get(f"/structs/guild_rank_permission/object/{rank['objectId']}/guild/{rank['guildId']}")).json
    application = node.data.rows("guild_membership_application")[0]
    bank = (await get("/structs/guild_bank_collateral_address/anything")).json
    earnings = (await get("/structs/provider_earnings_address?pagination.limit=1")).json
    address = node.data.rows("player")[0]["primaryAddress"]
    proof = f"{'02' * 33}/{'00' * 64}/hello"

    assert ["guild_rank_permission_records", "pagination"] == list(ranks)
    assert (2, True) == (len(ranks["guild_rank_permission_records"]), bool(ranks["pagination"]["next_key"]))
    assert rank in of_guild["guild_rank_permission_records"]
    assert of_guild["pagination"] is None
    assert {"GuildMembershipApplication": application} == (
        await get(f"/structs/guild_membership_application/{application['guildId']}/{application['playerId']}")
    ).json
    assert (["anything"], None) == (
        [row["objectId"] for row in bank["internalAddressAssociation"]],
        bank["pagination"],
    )
    assert len(bank["internalAddressAssociation"][0]["address"]) > len(address)
    assert "10-1" == earnings["internalAddressAssociation"][0]["objectId"]
    assert {"params": {}} == (await get("/structs/structs/params")).json
    assert (await get(f"/structs/validate_signature/{address}/{proof}")).json["valid"]
    wrong = (await get("/structs/validate_signature/structs1x/zz/00/hello")).json
    assert [True, True, True, True, False] == list(wrong.values())


async def test_attribute_and_permission_lists_have_key_and_value_rows(node, get):
    for name, key, field in (
        ("grid", "gridRecords", "attributeId"),
        ("struct_attribute", "structAttributeRecords", "attributeId"),
        ("planet_attribute", "planetAttributeRecords", "attributeId"),
        ("permission", "permissionRecords", "permissionId"),
    ):
        page = (await get(f"/structs/{name}?pagination.limit=3")).json
        assert node.data.rows(name)[:3] == page[key]
        assert [field, "value"] == list(page[key][0])


async def test_ranks_of_object_and_guild_are_limited_to_25_rows(client_of):
    """The route has no paging."""
    async with FakeNode(entities={"0-1": {"id": "0-1"}}) as node, client_of(node) as get:
        for bit in range(30):
            node.data.put("guild_rank_permission", f"4-1/0-1/{bit:02}", {"objectId": "4-1", "permissions": str(2**bit)})
        answer = (await get("/structs/guild_rank_permission/object/4-1/guild/0-1")).json

    assert 25 == len(answer["guild_rank_permission_records"])


async def test_node_with_exact_entities_has_nothing_else(client_of):
    async with FakeNode(entities={"1-11": {"Player": {"id": "1-11"}, "note": 1}}) as node, client_of(node) as get:
        assert {"Player": {"id": "1-11"}, "note": 1} == (await get("/structs/player/1-11")).json
        assert 500 == (await get("/structs/player/1-12")).status
        assert [] == (await get("/structs/agreement_by_provider/10-1")).json["Agreement"]
        assert [{"id": "1-11"}] == (await get("/structs/player")).json["Player"]
