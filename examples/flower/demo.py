"""Run the app of this directory: on one SuperLink and two SuperNodes of this machine, or in Flower's simulation.

    python examples/flower/demo.py                        # processes that talk over loopback
    python examples/flower/demo.py --engine simulation    # Ray

Everything that is started is ended, by its process id. Nothing is downloaded, installed or reported: Flower's
telemetry, its search for updates and its installation of an app's dependencies are switched off.
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
    """Start, run, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("deployment", "simulation"), default="deployment")
    parser.add_argument("--nodes", type=int, default=None, help="2 SuperNodes, or 10 simulated ones")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("runs/flower"))
    arguments = parser.parse_args()
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
    """An environment in which Flower and Ray keep to themselves."""
    switches = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    own = {"FLWR_HOME": str(home), "RAY_TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **switches, **own, "PATH": path}


def program(name: str) -> str:
    """Flower's command of the Python that runs this."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path):
    """A process with all it starts, ended at the end."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [program(command[0]), *command[1:]], env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process
        finally:
            # Its own group: SuperLink and SuperNodes start further processes for the apps.
            for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
                try:
                    os.killpg(process.pid, how)
                    process.wait(seconds)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens to."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(address: str, seconds: float = 120) -> None:
    """Until somebody listens there."""
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody listens on {address} after {seconds:.0f} s") from None
            time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
