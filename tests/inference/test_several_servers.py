"""Choice among servers, fail-over and recovery, and the limits of training and evaluation."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from environments.errors import ServerUnavailable
from environments.inference.retrying import Backoff
from environments.inference.server_manager import ServerManager
from environments.waiting import WaitingClock, counted
from tests.inference.scripted_server import ScriptedServer, fails, hangs, says, serving

USER = [{"role": "user", "content": "hi"}]
FAST = Backoff(first=0.02, longest=0.05)


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60))


def test_calls_are_spread_over_the_servers() -> None:
    async def test() -> None:
        async with serving(says("a", delay=0.1)) as a, serving(says("b", delay=0.1)) as b:
            async with ServerManager([a.config(), b.config()]) as manager:
                await asyncio.gather(*(manager.chat_completion(USER) for _ in range(20)))
            assert len(a.requests) == len(b.requests) == 10

    run(test())


def test_a_session_stays_with_its_server_and_sessions_are_spread() -> None:
    async def test() -> None:
        async with (
            serving(says("a")) as a,
            serving(says("b")) as b,
            ServerManager([a.config(), b.config()]) as manager,
        ):
            sessions = [manager.session() for _ in range(6)]
            for _ in range(3):
                replies = await asyncio.gather(*(s.chat_completion(USER) for s in sessions))
                servers = [reply.server for reply in replies]
                assert Counter(servers) == {manager.servers[0].label: 3, manager.servers[1].label: 3}
                assert servers == [session.server for session in sessions]
            for session in sessions:
                await session.close()
            assert [server.slots.sessions for server in manager.servers] == [0, 0]

    run(test())


def test_a_forgotten_session_is_no_load() -> None:
    async def test() -> None:
        async with serving(says("a")) as a, ServerManager([a.config()]) as manager:
            await manager.session().chat_completion(USER)
            assert manager.servers[0].slots.sessions == 0

    run(test())


def test_a_dead_server_is_left_and_used_again_when_it_is_back() -> None:
    async def test() -> None:
        async with (
            serving(says("a")) as a,
            serving(says("b")) as b,
            ServerManager([a.config(), b.config()], backoff=FAST) as manager,
        ):
            for server in manager.servers:
                server.slots.health.shortest = 0.3
            session = manager.session()
            first = await session.chat_completion(USER)
            pinned, other = (a, b) if first.server == manager.servers[0].label else (b, a)
            await pinned.stop()
            moved = await session.chat_completion(USER)
            assert moved.server != first.server
            assert moved.timing.retries == 1
            before = len(other.requests)
            await asyncio.gather(*(manager.chat_completion(USER) for _ in range(5)))
            assert len(other.requests) == before + 5
            await pinned.start()
            await asyncio.sleep(0.4)
            served = len(pinned.requests)
            await asyncio.gather(*(manager.chat_completion(USER) for _ in range(4)))
            await asyncio.gather(*(manager.chat_completion(USER) for _ in range(4)))
            assert len(pinned.requests) > served
            assert (await session.chat_completion(USER)).server == moved.server

    run(test())


def test_repeated_server_errors_move_calls_elsewhere_without_probes() -> None:
    async def test() -> None:
        async with (
            serving(fails(500)) as bad,
            serving(says("ok")) as good,
            ServerManager([bad.config(), good.config()], backoff=FAST) as manager,
        ):
            for _ in range(20):
                await manager.chat_completion(USER)
            assert len(good.requests) == 20
            assert len(bad.requests) <= 4
            await asyncio.sleep(0.3)
            assert len(bad.requests) <= 4

    run(test())


def test_servers_that_all_fail_are_not_hammered() -> None:
    async def test() -> None:
        async with (
            serving(fails(500)) as a,
            serving(fails(500)) as b,
            ServerManager([a.config(), b.config()], backoff=Backoff(0.3, 0.3)) as manager,
        ):
            call = asyncio.create_task(manager.chat_completion(USER))
            await asyncio.sleep(0.1)
            assert (len(a.requests), len(b.requests)) == (1, 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    run(test())


def test_all_dead_ends_every_call() -> None:
    async def test() -> None:
        dead = ScriptedServer([says("x")])
        await dead.start()
        await dead.stop()
        configs = [dead.config(max_retries=3), dead.config(max_retries=3)]
        async with ServerManager(configs, backoff=FAST) as manager:
            ends = await asyncio.gather(
                *(manager.chat_completion(USER) for _ in range(30)), return_exceptions=True
            )
        assert all(isinstance(end, ServerUnavailable) for end in ends)
        assert all("no connection" in str(end) or "no model server" in str(end) for end in ends)

    run(test())


def test_calls_that_wait_for_a_dead_server_go_on_when_it_is_back() -> None:
    async def test() -> None:
        server = ScriptedServer([says("ok")])
        await server.start()
        await server.stop()
        async with ServerManager([server.config(max_retries=8)], backoff=Backoff(0.2, 0.5)) as manager:
            manager.servers[0].slots.health.shortest = 0.1
            manager.servers[0].slots.health.longest = 0.3
            calls = [asyncio.create_task(manager.chat_completion(USER)) for _ in range(10)]
            await asyncio.sleep(0.4)
            await server.start()
            replies = await asyncio.gather(*calls)
        await server.stop()
        assert all(reply.choices[0].message.content == "ok" for reply in replies)

    run(test())


def test_training_and_evaluation_have_limits_of_their_own() -> None:
    async def test() -> None:
        async with serving(says("x", delay=0.1)) as server:
            config = server.config(num_max_requests_at_once=3, num_requests_for_eval=2)
            async with ServerManager([config]) as manager:
                await asyncio.gather(*(manager.chat_completion(USER) for _ in range(9)))
                assert server.most_in_flight == 3
                server.most_in_flight = 0
                sessions = [manager.session(split="eval") for _ in range(8)]
                await asyncio.gather(*(session.chat_completion(USER) for session in sessions))
                assert server.most_in_flight == 2
                server.most_in_flight = 0
                both = [manager.chat_completion(USER, split=s) for s in ("train", "eval") for _ in range(6)]
                await asyncio.gather(*both)
                assert server.most_in_flight == 5
                stats = manager.stats()
        assert stats["server/server_0_eval_request_time_avg"] > 0
        assert stats["server/server_0_request_time_99p"] > 0

    run(test())


def test_a_full_training_queue_does_not_stop_evaluation() -> None:
    async def test() -> None:
        async with (
            serving(hangs(), says("ok")) as server,
            ServerManager([server.config(num_max_requests_at_once=1)]) as manager,
        ):
            stuck = [asyncio.create_task(manager.chat_completion(USER)) for _ in range(3)]
            while not server.requests:
                await asyncio.sleep(0.01)
            reply = await manager.chat_completion(USER, split="eval")
            assert reply.choices[0].message.content == "ok"
            for call in stuck:
                call.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)

    run(test())


def test_waiting_for_our_own_limit_is_waiting_and_not_time_of_the_call() -> None:
    async def test() -> None:
        async with serving(says("x", delay=0.5)) as server:
            config = server.config(num_max_requests_at_once=1, timeout=1)
            async with ServerManager([config]) as manager:
                clocks = [WaitingClock() for _ in range(4)]

                async def call(clock: WaitingClock) -> Any:
                    with counted(clock):
                        return await manager.chat_completion(USER)

                replies = await asyncio.gather(*(call(clock) for clock in clocks))
        assert max(reply.timing.waiting for reply in replies) >= 1.4
        assert max(clock.total for clock in clocks) >= 1.4

    run(test())


def test_sessions_keep_the_order_of_arrival() -> None:
    async def test() -> None:
        async with serving(says("x", delay=0.02)) as server:
            async with ServerManager([server.config(num_max_requests_at_once=1)]) as manager:
                calls = []
                for number in range(8):
                    message = [{"role": "user", "content": str(number)}]
                    calls.append(asyncio.create_task(manager.chat_completion(message)))
                    await asyncio.sleep(0)
                await asyncio.gather(*calls)
            assert [r["messages"][0]["content"] for r in server.requests] == [str(i) for i in range(8)]

    run(test())


def test_a_cancelled_probe_does_not_lock_the_server_out() -> None:
    async def test() -> None:
        async with (
            serving(hangs(), says("ok")) as server,
            ServerManager([server.config()], backoff=FAST) as manager,
        ):
            health = manager.servers[0].slots.health
            permit = health.admit(0.0)
            assert permit is not None
            health.failed(permit, 0.0, decisive=True)
            probe = asyncio.create_task(manager.chat_completion(USER))
            while not server.requests:
                await asyncio.sleep(0.01)
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            reply = await manager.chat_completion(USER)
            assert reply.choices[0].message.content == "ok"

    run(test())


@pytest.mark.parametrize("count", [1, 2])
def test_no_request_is_made_that_nobody_asked_for(count: int) -> None:
    async def test() -> None:
        async with serving() as server:
            async with ServerManager([server.config() for _ in range(count)]):
                await asyncio.sleep(0.2)
            assert server.requests == []

    run(test())
