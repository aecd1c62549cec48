"""notify: create automations on Prefect's server that send notifications of failed nights and suites.

assayline notify BLOCK [--file FILE] [--test]
"""

from pathlib import Path

from assayline.errors import SpecError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.process import prefect_api

AUTOMATIONS = Path(__file__).with_name("notify.yaml")
SCHEDULED = ("assayline.flows.nightly.nightly", "assayline.flows.suite.suite")
EPILOG = """BLOCK sends the messages: webhook/pager, slack-webhook/team or another of `prefect block ls`. Create it in
Prefect's UI under Blocks. Messages are of the nights and suites that the prefect.yaml in this folder deploys. A
second call updates their automations.

Exit codes: 0 created, 2 unknown block, no prefect.yaml, invalid automations."""
PARSER = make_parser("notify", EPILOG)
PARSER.add_argument("block", metavar="BLOCK", help="TYPE/NAME of the notification block")
PARSER.add_argument("--file", type=Path, default=AUTOMATIONS, help="automations as YAML (default: assayline's)")
PARSER.add_argument("--test", action="store_true", help="send a test message, as of a failed night")


def run(arguments: list[str]) -> int:
    """Create the automations, or update those with their names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    from datetime import UTC, datetime, timedelta

    import yaml
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Failed, Scheduled

    try:
        deployed = yaml.safe_load(Path("prefect.yaml").read_text(encoding="utf-8"))["deployments"]
        names = [
            f"{one['entrypoint'].split('.')[-1]}/{one['name']}" for one in deployed if one["entrypoint"] in SCHEDULED
        ]
    except (OSError, LookupError, TypeError, yaml.YAMLError) as error:
        why = f"{type(error).__name__}: {error}"
        raise SpecError(
            f"No deployments in ./prefect.yaml: {why}. hint: run it where you run `prefect deploy`."
        ) from None
    kind, _, block_name = known.block.partition("/")
    with prefect_api(), get_client(sync_client=True) as client:
        try:
            block = client.read_block_document_by_name(block_name, kind).id
            tested = [client.read_deployment_by_name(name).id for name in names if known.test]
        except ObjectNotFound:
            raise SpecError(
                f"Unknown block {known.block}, or {' and '.join(names)} not deployed. hint: list blocks with `prefect "
                "block ls`, and deploy with `prefect deploy --all`."
            ) from None
        wanted = {}
        try:
            text = known.file.read_text(encoding="utf-8")
            for name in names:
                for one in yaml.safe_load(text.replace("DEPLOYMENT", name.partition("/")[2]))["automations"]:
                    if message := one.pop("message", None):
                        sends = {"type": "send-notification", "subject": "assayline", "body": message}
                        calls = {"type": "call-webhook", "payload": message}
                        one["actions"] = [{"block_document_id": block, **(calls if kind == "webhook" else sends)}]
                    wanted[one["name"]] = AutomationCore.model_validate(one)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise SpecError(f"{known.file} is not valid: {error}. hint: begin with a copy of {AUTOMATIONS}.") from None
        for name, automation in wanted.items():
            if there := client.read_automations_by_name(name):
                client.update_automation(there[0].id, automation)
            else:
                client.create_automation(automation)
            print(f"{'Updated' if there else 'Created'}: {name}")
        for name, deployment in zip(names, tested, strict=False):
            later = datetime.now(UTC) + timedelta(days=1)  # so that no worker starts it
            night = client.create_flow_run_from_deployment(
                deployment, name=f"test of {name}", state=Scheduled(scheduled_time=later)
            )
            client.set_flow_run_state(night.id, Failed(message="A test by `assayline notify --test`."), force=True)
            print(f"Sent: a test of {name}, which must arrive within a minute")
    return 0
