"""Passes on what two servers say to each other, each way later by a delay: ``relay.py NEAR FAR MILLISECONDS USER``.

It listens at the Unix socket NEAR and passes on to FAR, as USER (who started it, if that is empty). Whoever says much
is not slowed: what is under way is kept with the time when it is due, up to 64 MiB each way. It is run by its path and
needs the standard library alone.
"""

import asyncio
import os
import pwd
import selectors
import sys

_CHUNK = 1 << 16
_UNDER_WAY = 1024

_Queue = asyncio.Queue[tuple[float, bytes]]


async def serve(near: str, far: str, delay_s: float) -> None:
    """Relay whoever connects, for ever."""

    async def relay(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        ends = [near_out]
        try:
            far_in, far_out = await asyncio.open_unix_connection(far)
            ends.append(far_out)
            async with asyncio.TaskGroup() as tasks:
                for reader, writer in ((near_in, far_out), (far_in, near_out)):
                    under_way = _Queue(_UNDER_WAY)
                    tasks.create_task(_take(reader, under_way, delay_s))
                    tasks.create_task(_give(under_way, writer))
        except* OSError:
            pass  # one of them has ended
        finally:
            for end in ends:
                end.close()

    async with await asyncio.start_unix_server(relay, near) as server:
        await server.serve_forever()


async def _take(reader: asyncio.StreamReader, under_way: _Queue, delay_s: float) -> None:
    clock = asyncio.get_running_loop().time
    data = b"any"
    while data:
        data = await reader.read(_CHUNK)
        await under_way.put((clock() + delay_s, data))


async def _give(under_way: _Queue, writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due_s, data = await under_way.get()
        await asyncio.sleep(due_s - clock())
        if not data:
            raise ConnectionResetError  # so the other direction ends too
        writer.write(data)
        await writer.drain()


def main() -> None:
    """Serve as the user that the command line names."""
    near, far, delay_ms, user = sys.argv[1:]
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    # select waits by the microsecond, epoll by the millisecond
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve(near, far, float(delay_ms) / 1000))


if __name__ == "__main__":
    main()
