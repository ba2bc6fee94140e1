"""The kernel that executes notebooks: ipykernel's, without the TCP port on which it would hear its forks.

What a forked process prints then goes to the kernel's own output instead of a cell's.
"""

from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp


def _listen_to_no_fork(thread: IOPubThread) -> None:
    thread._pipe_flag = False


if __name__ == "__main__":
    IOPubThread._setup_pipe_in = _listen_to_no_fork  # type: ignore[method-assign]
    IPKernelApp.launch_instance()
