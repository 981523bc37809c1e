"""Commands for another host: it judges them with its own files and rules, asks on every host, and finds their folder and environment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from conftest import HomeCli, caller, wait_until
from postgres_server import AGENT, PERSON, WORKER, LedgerDatabase

from backburner.coordination.config_file import ConfigFile
from backburner.core.claims import ClaimedRun, RunResult
from backburner.core.errors import ApprovalDenied, BadInput, NotPermitted, QuestionChanged
from backburner.core.models import ENGINE, Entry
from backburner.core.ports import CannotStart, ChannelReply, OutgoingMessage
from backburner.core.schedule import every
from backburner.core.states import Result, RunState, WaitKind
from backburner.integrations.delivery import DeliveryWorker
from backburner.interfaces.cli.questions import question_of
from backburner.services.app import App, open_app
from backburner.services.daemon_parts import Services, open_integration_parts
from backburner.store.postgres_schema import migrate
from backburner.system.home import Home
from backburner.system.processes import myself
from backburner.testing.records import request

NO_SANDBOX = '[sandbox]\nlevel = "none"\n'
WITH_ROLES = True
ALLOWED = '[[approval.rules]]\nname = "echo"\ndecision = "allow"\ncommand = "echo **"\n'
DENIED = '[[approval.rules]]\nname = "no echo"\ndecision = "deny"\ncommand = "echo **"\n'


class Hosts:
    """The homes `alpha` and `beta`, which share a ledger."""

    def __init__(self, database: LedgerDatabase, folder: Path) -> None:
        self._database, self._folder, self._opened = database, folder, list[App]()

    def open(self, name: str, config: str = NO_SANDBOX, user: str = "", person: str = "") -> App:
        """Join and open a home."""
        home = Home(str(self._folder / name)).make()
        migrate(self._database.url, host_id=home.create_host_id(), home=f"{name}:{home.root}")
        store = f'[store]\nurl = "{self._database.url_of(user) if user else self._database.url}"\nperson = "{person}"\n'
        Path(home.config).write_text(store + config)
        self._opened.append(open_app(home, {"PATH": "/usr/bin:/bin", "HOME": str(self._folder), "NAME": name}))
        return self._opened[-1]

    def close(self) -> None:
        for app in self._opened:
            app.close()
            root = Path(app.home.root)
            HomeCli(root, root).stop_engine()  # what is submitted for its own host starts one


@pytest.fixture
def hosts(database: LedgerDatabase, tmp_path: Path) -> Iterator[Hosts]:
    database.empty()
    found = Hosts(database, tmp_path)
    yield found
    found.close()


def submit(app: App, other: App | str, *command: str, cwd: Path | str = "/", **more: object) -> Entry:
    """Submit a command for another host, or for a lane."""
    place = other if isinstance(other, str) else f"@{other.host_id}"
    approved_via = more.pop("approved_via", None)
    submission = request(
        **{"command": command or ("echo", "hello"), "cwd": str(cwd), "environment": dict(app.environ), "place": place, **more}
    )
    return app.submissions.submit(submission, caller(app), approved_via=approved_via)  # type: ignore[arg-type]


def claim(app: App, run_id: str = "") -> ClaimedRun:
    """Claim the only run in the queue of a host; a run of a lane is handed out to it first."""
    ledger = app._ledger
    if run_id:
        ledger.dispatch.move(run_id, f"{ENGINE}@{app.host_id}")
    (work,) = ledger.runs.claim(ENGINE, myself(), 9, app.now())
    return work


def start(app: App, work: ClaimedRun) -> str | None:
    """Do what a runner does before the start: nothing may run, or it is suspended; returns why it asks."""
    work = app.gate.placed(work)
    checked = app.gate.recheck(work.task, work.environment)
    if checked.reason is not None:
        app._ledger.runs.suspend(work.run.run_id, myself(), checked.reason, app.now(), WaitKind.APPROVAL, asked=checked.fingerprint)
    return checked.reason


def entry_of(app: App, entry: Entry) -> Entry:
    return app.queries.get(entry.task.task_id)


# -- who judges


def test_the_host_that_runs_a_command_asks_and_an_approval_on_another_host_counts(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    entry = submit(alpha, beta)
    assert (entry.task.decision.by, entry.task.decision.rule, entry.status) == ("auto", "sandbox", "pending")
    assert entry.run and entry.run.runner == f"engine@{beta.host_id}"
    assert str(start(beta, claim(beta))).startswith("on host beta, ")

    waiting = entry_of(alpha, entry)
    question = question_of(alpha, waiting)
    assert waiting.status == "waiting" and question and "requires approval on host beta:\n  echo hello" in question.text
    assert waiting.run and waiting.run.wait and waiting.run.wait.fingerprint == question.seen
    approved = alpha.approvals.approve(entry.task.task_id, caller(alpha), seen=question.seen)
    assert (approved.task.decision.by, approved.task.decision.fingerprint) == ("user", question.seen)
    assert start(beta, claim(beta)) is None


def test_what_changed_on_its_host_after_the_question_is_asked_again(hosts: Hosts, tmp_path: Path) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    script = tmp_path / "deploy.sh"
    script.write_text("echo one")
    entry = submit(alpha, beta, "sh", str(script), cwd=tmp_path)
    start(beta, claim(beta))
    first = alpha.gate.fingerprint_of(entry_of(alpha, entry))
    script.write_text("echo two")
    assert alpha.gate.fingerprint_of(entry_of(alpha, entry)) == first  # alpha cannot see the files of beta
    alpha.approvals.approve(entry.task.task_id, caller(alpha), seen=first)
    assert start(beta, claim(beta)) is not None
    with pytest.raises(QuestionChanged):
        alpha.approvals.approve(entry.task.task_id, caller(alpha), seen=first)
    alpha.approvals.approve(entry.task.task_id, caller(alpha))
    assert start(beta, claim(beta)) is None


def test_the_rules_of_the_host_that_runs_it_apply(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta", NO_SANDBOX + ALLOWED)
    submit(alpha, beta)
    assert start(beta, claim(beta)) is None


def test_a_rule_of_the_host_that_runs_it_denies_it(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha", NO_SANDBOX + ALLOWED), hosts.open("beta", NO_SANDBOX + DENIED)
    submit(alpha, beta)
    with pytest.raises(CannotStart, match="host beta denies it: "):
        start(beta, claim(beta))


def test_a_rule_of_the_host_that_submits_it_denies_it(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha", NO_SANDBOX + DENIED), hosts.open("beta", NO_SANDBOX + ALLOWED)
    with pytest.raises(ApprovalDenied):
        submit(alpha, beta)


def test_a_command_for_this_host_is_judged_at_once(hosts: Hosts) -> None:
    alpha = hosts.open("alpha")
    assert submit(alpha, alpha).status == "proposed"


def test_an_approval_in_advance_is_refused(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    with pytest.raises(BadInput, match="cannot be approved in advance"):
        submit(alpha, beta, approved_via="cli")
    assert alpha.queries.list(caller(alpha), everywhere=True) == []


def test_a_run_of_a_lane_that_asked_stays_on_its_host(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    entry = submit(alpha, "/gpu")
    assert entry.run and entry.run.runner == "engine/gpu"
    start(beta, claim(beta, entry.run.run_id))
    waiting = entry_of(alpha, entry).run
    assert waiting and (waiting.state, waiting.runner, waiting.host) == (RunState.WAITING, f"engine@{beta.host_id}", beta.host_id)


def test_an_approval_for_one_host_does_not_count_on_another(hosts: Hosts, tmp_path: Path) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    script = tmp_path / "deploy.sh"
    script.write_text("echo one")
    entry = submit(alpha, "/gpu", "sh", str(script), cwd=tmp_path, proposed=True)
    assert entry.status == "proposed"
    alpha.approvals.approve(entry.task.task_id, caller(alpha))
    script.write_text("echo two")  # as on another host, where other files are
    assert str(start(beta, claim(beta, entry.task.task_id))).startswith("on host beta, ")


def test_a_proposal_of_another_host_is_approved_with_the_fingerprint_that_it_recorded(hosts: Hosts, tmp_path: Path) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    entry = submit(alpha, "", cwd=tmp_path)
    assert entry.status == "proposed" and entry.task.decision.fingerprint
    assert beta.gate.fingerprint_of(entry) == entry.task.decision.fingerprint
    approved = beta.approvals.approve(entry.task.task_id, caller(beta))
    assert approved.run and approved.run.runner == f"engine@{alpha.host_id}"
    assert start(alpha, claim(alpha)) is None


def test_trust_belongs_to_one_host(hosts: Hosts, tmp_path: Path) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    alpha.approvals.trust_project(str(project), caller(alpha))
    assert [grant.project for grant in alpha.approvals.grants()] == [str(project)]
    assert beta.approvals.grants() == []


def test_a_permanent_permission_is_not_given_for_another_host(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    entry = submit(alpha, beta)
    start(beta, claim(beta))
    with pytest.raises(BadInput, match="the task runs on host beta"):
        alpha.approvals._grant_choice(entry_of(alpha, entry), "trust", caller(alpha))


# -- where it runs


def test_a_folder_that_a_host_does_not_have_is_named_with_what_to_do(hosts: Hosts, tmp_path: Path) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    folder = tmp_path / "web"
    folder.mkdir()
    submit(alpha, beta, cwd=folder)
    folder.rmdir()
    with pytest.raises(CannotStart, match=f"host beta has no {folder}: map it there .*submit with --lane repo:web") as refused:
        start(beta, claim(beta))
    assert refused.value.exit_code == 125


def test_a_project_is_found_by_its_name(hosts: Hosts, tmp_path: Path) -> None:
    here, there = tmp_path / "web", tmp_path / "srv" / "web"
    (here / "src").mkdir(parents=True)
    (here / ".git").mkdir()
    (there / "src").mkdir(parents=True)
    alpha, beta = hosts.open("alpha"), hosts.open("beta", f'{NO_SANDBOX}[worker.projects]\nweb = "{there}"\n')
    entry = submit(alpha, "/gpu+repo:web", cwd=here / "src", opened=str(here))
    work = beta.gate.placed(claim(beta, entry.task.task_id))
    assert (work.task.spec.cwd, work.task.project, work.task.opened) == (f"{there}/src", str(there), str(there))
    assert entry_of(alpha, entry).task.spec.cwd == f"{here}/src"


def test_a_command_gets_the_environment_of_the_host_that_runs_it(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta", f'{NO_SANDBOX}[worker.env]\nEXTRA = "of beta"\n')
    alpha.environ["LANG"] = "C.UTF-8"
    submit(alpha, beta, env={"GIVEN": "1"})
    work = claim(beta)
    assert work.environment["NAME"] == "beta" and work.environment["EXTRA"] == "of beta"
    assert work.task.spec.env == {"LANG": "C.UTF-8", "GIVEN": "1"}  # what the caller passes on


# -- who may approve


def test_a_worker_asks_and_a_person_on_another_host_approves(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha", user=WORKER, person=PERSON), hosts.open("beta", user=WORKER)
    entry = submit(alpha, beta)
    start(beta, claim(beta))
    with pytest.raises(NotPermitted, match=f"The database user {WORKER} may not do this: only a person can approve"):
        beta.approvals.approve(entry.task.task_id, caller(beta))
    approved = alpha.approvals.approve(entry.task.task_id, caller(alpha))
    assert approved.task.decision.via == f"library@alpha:{PERSON}"
    assert start(beta, claim(beta)) is None


def test_an_engine_runs_what_another_host_submitted_and_a_person_there_approved(
    home_cli: HomeCli, hosts: Hosts, database: LedgerDatabase
) -> None:
    alpha = hosts.open("alpha", user=WORKER, person=PERSON)
    home_cli.configure(f'{NO_SANDBOX}[store]\nurl = "{database.url_of(WORKER)}"\n')
    beta = home_cli.home.create_host_id()
    migrate(database.url, host_id=beta, home=f"beta:{home_cli.root}")
    entry = submit(alpha, f"@{beta}", "sh", "-c", "echo $BACKBURNER_TASK_ID", cwd=home_cli.cwd)

    def has_status(status: str) -> bool:
        home_cli.ok("list")  # starts the engine, if there is none
        return entry_of(alpha, entry).status == status

    wait_until(lambda: has_status("waiting"), "the engine to ask", 60)
    alpha.approvals.approve(entry.task.task_id, caller(alpha))
    wait_until(lambda: has_status("completed"), "the command to end", 60)
    assert home_cli.log(entry.task.task_id) == f"{entry.task.task_id}\n".encode()


# -- a host that only submits


def test_a_host_that_only_submits_is_told_to_say_where_a_task_runs(hosts: Hosts) -> None:
    laptop, beta = hosts.open("laptop", user=AGENT), hosts.open("beta", user=WORKER)
    for more in ({}, {"schedule": every(60_000, laptop.now()), "name": "nightly"}):
        with pytest.raises(BadInput, match=r"This host only submits tasks.*--lane NAME or --host NAME"):
            submit(laptop, "", **more)
        with pytest.raises(BadInput, match="This host only submits tasks"):
            submit(laptop, laptop, **more)
    assert laptop.queries.list(caller(laptop), everywhere=True) == []
    assert {submit(laptop, place).status for place in ("/gpu", beta)} == {"pending"}
    assert submit(beta, "", approved_via=None).task.origin_host == beta.host_id


# -- what readers on other hosts see


def test_a_run_that_starts_elsewhere_gets_no_files_in_this_home(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    for place in ("/gpu", beta):
        entry = submit(alpha, place)
        alpha.runs.repair_metadata(entry)
        assert not Path(alpha.runs.folder(entry)).exists()
    own = submit(beta, beta, "true", approved_via="cli")
    beta.runs.repair_metadata(own)
    assert (Path(beta.runs.folder(own)) / "metadata.json").exists()


def test_a_notice_names_a_command_that_works_on_every_host(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    entry = submit(alpha, beta)
    ended = RunResult(claim(beta).run.run_id, RunState.COMPLETED, Result.EXIT, beta.now(), 0, summary="done", artifacts=("a.bin",))
    beta._ledger.runs.settle([ended], myself())
    (notice,) = alpha.inbox.notices()
    task_id = entry.task.task_id
    assert f"done. Output: backburner logs {task_id} Files (backburner fetch {task_id}): a.bin" in notice.text


# -- a second leader


class Slow:
    """A channel that accepts a message only when it is told to."""

    def __init__(self, sent: list[str]) -> None:
        self.sent, self.accepts = sent, asyncio.Event()

    async def send(self, message: OutgoingMessage) -> None:
        self.sent.append(message.key)
        await self.accepts.wait()

    async def check(self) -> None: ...
    async def replies(self) -> AsyncIterator[ChannelReply]:
        for reply in ():
            yield reply

    async def close(self) -> None: ...


async def test_two_hosts_that_both_lead_send_a_notice_once(hosts: Hosts) -> None:
    alpha, beta = hosts.open("alpha"), hosts.open("beta")
    for app in (alpha, beta):
        Path(app.home.config).write_text(
            Path(app.home.config).read_text() + '[channels.phone]\ntype = "webhook"\nurl = "http://127.0.0.1:1/"\n'
        )
        app.config_file.reload_if_changed()
    entry = submit(alpha, beta, channels=("phone",))
    ended = RunResult(claim(beta).run.run_id, RunState.COMPLETED, Result.EXIT, beta.now(), 0)
    beta._ledger.runs.settle([ended], myself())
    sent: list[str] = []
    channels = [Slow(sent), Slow(sent)]
    async with contextlib.AsyncExitStack() as stack:
        working = []
        for app, channel in zip((alpha, beta), channels, strict=True):
            services = await stack.enter_async_context(
                Services(lambda app=app: open_integration_parts(app.home, {}, ConfigFile(app.home, {})))
            )
            worker = DeliveryWorker(services, "phone", channel)
            working.append((worker, asyncio.create_task(worker.run())))
        await asyncio.to_thread(wait_until, lambda: sent, "a host to send it")
        await asyncio.to_thread(wait_until, lambda: any(worker._wait_seconds for worker, _ in working), "the other host to wait for it")
        for channel in channels:
            channel.accepts.set()
        await asyncio.to_thread(wait_until, lambda: not alpha.deliveries.pending(), "the notice to be delivered")
        await asyncio.to_thread(wait_until, lambda: all(worker.idle for worker, _ in working), "both hosts to have nothing to do")
        for _, task in working:
            task.cancel()
        await asyncio.gather(*(task for _, task in working), return_exceptions=True)
    assert len(sent) == 1 and entry.task.task_id in sent[0]
