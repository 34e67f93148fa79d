"""Run the app in this directory, on one SuperLink and two SuperNodes on this machine or in Flower's simulation.

    python examples/flower/demo.py                        # processes that talk over loopback
    python examples/flower/demo.py --engine simulation    # Ray

All processes are stopped in the end. Nothing is downloaded, installed or reported: Flower's telemetry, update check and
installation of dependencies are switched off.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Start the engine, run the app, stop the engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("deployment", "simulation"), default="deployment")
    parser.add_argument("--nodes", type=int, default=None, help="default: 2 SuperNodes, or 10 simulated nodes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("runs/flower"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop everything that was started, as after Ctrl-C
    simulated = arguments.engine == "simulation"
    nodes = arguments.nodes or (10 if simulated else 2)
    ports = free_ports(1 + nodes)
    address = f"127.0.0.1:{ports[0]}"
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flower-")))
        options = f"options.num-supernodes = {nodes}\n" if simulated else ""
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "{address}"\ninsecure = true\n{options}'
        )
        environment = offline(home)
        link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
        link += ["--port", str(ports[0]), *(["--simulation"] if simulated else [])]
        stack.enter_context(running(link, environment, home / "link.log"))
        wait_for(address)
        if not simulated:
            for i in range(nodes):
                node = ["flower-supernode", "--insecure", "--superlink", address, "--port", str(ports[1 + i])]
                node += ["--node-config", f"partition-id={i} num-partitions={nodes}"]
                stack.enter_context(running(node, environment, home / f"node-{i}.log"))
        settings = f"num-server-rounds={arguments.rounds} clients={nodes} noise-multiplier={arguments.noise} "
        settings += f'out="{arguments.out.resolve()}"'
        run = [program("flwr"), "run", str(HERE), "demo", "--stream", "--run-config", settings]
        done = subprocess.run(run, env=environment, check=False)
        result = arguments.out / "result.json"
        if done.returncode or not result.is_file():
            print("\n".join(path.read_text()[-3000:] for path in home.glob("*.log")), file=sys.stderr)
            return 1
    return 0


def offline(home: Path) -> dict[str, str]:
    """Return an environment in which Flower and Ray do not use the network."""
    switches = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    local = {"FLWR_HOME": str(home), "RAY_TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **switches, **local, "PATH": path}


def program(name: str) -> str:
    """Return the path of a Flower command beside the running Python."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path):
    """Run a process, and stop it and everything it started on exit."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [program(command[0]), *command[1:]], env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process
        finally:
            # The whole process group, since SuperLink and SuperNodes start further processes for the apps.
            for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
                try:
                    os.killpg(process.pid, how)
                    process.wait(seconds)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def wait_for(address: str, seconds: float = 120) -> None:
    """Wait until a server listens at the address."""
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"no server at {address} after {seconds:.0f} s") from None
            time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
