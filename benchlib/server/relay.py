"""Passes on what two servers say to each other, each way later by a delay: ``relay.py NEAR FAR MILLISECONDS USER``.

It listens at the Unix socket NEAR and passes on to FAR, another one or ``ADDRESS:PORT``, as USER (who started it, if
that is empty). Whoever says much is not slowed: what is under way is kept until it is due. It is run by its path and
needs the standard library alone.
"""

import asyncio
import os
import pwd
import selectors
import sys

_CHUNK = 1 << 16


async def serve(near: str, far: str, delay_s: float) -> None:
    """Relay whoever connects, for ever."""

    async def relay(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        address, _, port = far.rpartition(":")
        try:
            far_in, far_out = await (
                asyncio.open_unix_connection(far)
                if far.startswith("/")
                else asyncio.open_connection(address, port)
            )
        except OSError:  # it has ended
            near_out.close()
            return
        ways = _pass_on(near_in, far_out, delay_s), _pass_on(far_in, near_out, delay_s)
        await asyncio.gather(*ways, return_exceptions=True)

    async with await asyncio.start_unix_server(relay, near) as server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what is read, and close at its end, each later; of one clock, so nothing overtakes what came before it."""
    later = asyncio.get_running_loop().call_later
    try:
        while data := await reader.read(_CHUNK):
            later(delay_s, writer.write, data)
            await writer.drain()
    finally:
        later(delay_s, writer.close)


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
