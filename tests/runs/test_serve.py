"""``coalmine serve``: runs on a page of this machine, for this machine alone."""

import http.client
import json
import os
import socket
import threading
from datetime import datetime

import pytest

from coalmine.errors import InputError
from coalmine.results import units
from coalmine.results.directory import RunDirectory
from coalmine.results.manifest import Manifest
from coalmine.runs.overview import last_words
from coalmine.runs.server import HOST, Server
from gate_runs import directory, result


@pytest.fixture
def served(tmp_path):
    root = tmp_path / "runs"
    path = directory(root / "one", result(bound=2.5, claim=8.0))
    (path / "report.html").write_text("<h1>a report</h1>")
    Manifest.of_files(path).write()
    (tmp_path / "secret.html").write_text("not for you")
    with Server(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield root, server
        server.shutdown()
        thread.join()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{server.server_port}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def runs(server):
    answer, content = get(server, "/api/runs")
    assert answer.status == 200
    return {run["name"]: run for run in json.loads(content)["runs"]}


def test_runs_are_listed_with_their_headline(served):
    found = runs(served[1])["one"]
    assert (found["state"], found["claim"], found["bound"], found["verdict"]) == ("done", 8.0, 2.5, "too weak")
    assert found["report"] is True


def test_claim_and_bound_of_a_run_are_about_the_same_unit(served):
    root, server = served
    report = result("ldp", "parameter-change", bound=3.8, claim=4.0, unit=units.REPORT)
    directory(root / "two", result(bound=4.5, claim=8.0), report)
    found = runs(server)["two"]
    assert (found["unit"], found["claim"], found["bound"]) == ("One user, whole training", 8.0, 4.5)
    refuting = result("ldp", "white-box", bound=4.5, claim=4.0, unit=units.REPORT)
    directory(root / "two", result(claim=8.0), refuting)
    found = runs(server)["two"]
    assert (found["unit"], found["claim"], found["bound"]) == ("One report", 4.0, 4.5)
    assert found["verdict"] == "refuted"


def test_results_that_were_saved_without_a_run_are_listed(served):
    root, server = served
    (directory(root / "mine", result(bound=1.5)) / "run.json").unlink()
    Manifest.of_files(root / "mine").write()
    found = runs(server)["mine"]
    assert (found["state"], found["bound"], found["progress"], found["message"]) == ("saved", 1.5, "", "")
    assert datetime.fromisoformat(found["changed"]).year >= 2025


def test_a_run_is_live_while_its_process_has_the_lock(served):
    root, server = served
    going = RunDirectory(root / "going")
    with going.claimed("[ldp]\n"):
        going.log("round", what="training", rounds=40, round=6, live=["ε so far 1.2"])
        found = runs(server)["going"]
        assert (found["state"], found["progress"]) == ("running", "training: round 7 of 40; ε so far 1.2")
    assert runs(server)["going"]["state"] == "done"
    about = json.loads((root / "going" / "run.json").read_text())
    (root / "going" / "run.json").write_text(json.dumps(about | {"state": "running"}))
    assert runs(server)["going"]["state"] == "stopped"


def test_a_result_that_changes_is_read_again_and_a_damaged_one_is_said_to_be(served):
    root, server = served
    assert runs(server)["one"]["bound"] == 2.5
    directory(root / "one", result(bound=9.25, claim=8.0))
    assert (runs(server)["one"]["bound"], runs(server)["one"]["verdict"]) == (9.25, "refuted")
    (root / "one" / "result.json").write_text("{")
    assert runs(server)["one"]["state"] == "unreadable"


def test_other_hosts_are_refused(served):
    port = served[1].server_port
    for host in ("evil.example", f"evil.example:{port}", HOST, f"{HOST}:{port + 1}", f"localhost.evil.example:{port}"):
        for path in ("/", "/api/runs", "/report/one"):
            answer, content = get(served[1], path, host)
            assert answer.status == 421
            assert "one" not in content.replace("machine only", "")
    assert get(served[1], "/", f"LOCALHOST:{port}")[0].status == 200


def test_it_listens_on_this_machine_alone(served):
    assert served[1].server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    [
        "/report/../secret.html", "/report/..%2fsecret.html", "/report/%2e%2e", "/report/one%2f..%2f..", "/report/.",
        "/report/", "/report/one%00", "/report//etc/passwd", "/report/one/run.json", "/one/run.json", "/..",
        "/report/link",
    ],
)  # fmt: skip
def test_nothing_but_reports_of_listed_runs_is_served(served, path, tmp_path):
    root, server = served
    outside = directory(tmp_path / "outside", result())
    (outside / "report.html").write_text("not for you")
    os.symlink(outside, root / "link")
    answer, content = get(server, path)
    assert (answer.status, "not for you" in content) == (404, False)


def test_a_report_that_is_a_link_elsewhere_is_not_served(served, tmp_path):
    root, server = served
    (root / "one" / "report.html").unlink()
    os.symlink(tmp_path / "secret.html", root / "one" / "report.html")
    assert get(server, "/report/one")[0].status == 404


def test_every_answer_has_a_policy_and_a_report_runs_in_a_sandbox(served):
    for path in ("/", "/app.js", "/api/runs", "/report/one", "/nowhere"):
        answer, _ = get(served[1], path)
        policy = answer.getheader("Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert ("sandbox" in policy) == (path == "/report/one")
        assert ("connect-src" not in policy) == (path == "/report/one")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Access-Control-Allow-Origin") is None
    assert get(served[1], "/report/one")[1] == "<h1>a report</h1>"


def test_nothing_can_be_written(served):
    for method in ("POST", "PUT", "DELETE"):
        assert get(served[1], "/report/one", method=method)[0].status == 501
    assert get(served[1], "/", method="HEAD")[1] == ""


def test_the_page_escapes_where_it_looks_and_has_no_script_of_its_own(tmp_path):
    from coalmine.runs.server import _index

    page = _index(tmp_path / "<img src=x onerror=alert(1)>")
    assert "<img" not in page
    assert page.count("<script") == page.count('<script src="/app.js">') == 1


def test_a_log_cut_off_anywhere_gives_its_last_whole_line(tmp_path):
    log = tmp_path / "log.jsonl"
    line = json.dumps({"event": "round", "what": "training", "round": 1, "rounds": 9, "live": []}) + "\n"
    log.write_text(line + '[1]\n{"event": "found", "part": "ld')
    assert last_words(log) == "training: round 2 of 9"
    log.write_text("")
    assert last_words(log) == last_words(tmp_path / "none") == ""


def test_a_port_or_a_directory_that_cannot_be_had_is_a_sentence(served, tmp_path, run):
    with pytest.raises(InputError, match="--port"):
        Server(served[0], served[1].server_port)
    code, _, err = run("serve", str(tmp_path / "nowhere"))
    assert (code, "there is no directory" in err) == (2, True)


def test_two_host_headers_are_refused(served):
    _, server = served
    ours = f"{HOST}:{server.server_port}"
    for hosts in ((ours, "evil.example"), ("evil.example", ours), (ours, ours), ()):
        connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
        connection.putrequest("GET", "/", skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == 421
        connection.close()


def test_a_hundred_connections_can_wait(tmp_path):
    with Server(tmp_path, 0) as server:  # nobody accepts: all of them wait
        waiting = [socket.create_connection((HOST, server.server_port), timeout=5) for _ in range(100)]
        assert all(connection.getpeername()[1] == server.server_port for connection in waiting)
        for connection in waiting:
            connection.close()
