"""notify: create automations on Prefect's server that send notifications of failed nights and suites.

assayline notify BLOCK [--file FILE]
"""

from pathlib import Path

from assayline.errors import SpecError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.process import prefect_api

AUTOMATIONS = Path(__file__).with_name("notify.yaml")
EPILOG = """BLOCK sends the messages: webhook/pager, slack-webhook/team or another of `prefect block ls`. Create it in
Prefect's UI under Blocks. A second call replaces the automations.

Exit codes: 0 created, 2 unknown block."""
PARSER = make_parser("notify", EPILOG)
PARSER.add_argument("block", metavar="BLOCK", help="TYPE/NAME of the notification block")
PARSER.add_argument("--file", type=Path, default=AUTOMATIONS, help="automations as YAML (default: assayline's)")


def run(arguments: list[str]) -> int:
    """Create the automations, replacing those with their names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    import yaml
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore
    from prefect.exceptions import ObjectNotFound

    kind, _, name = known.block.partition("/")
    with prefect_api(), get_client(sync_client=True) as client:
        try:
            block = client.read_block_document_by_name(name, kind).id
        except ObjectNotFound:
            raise SpecError(f"Unknown block {known.block}. hint: list blocks with `prefect block ls`.") from None
        for wanted in yaml.safe_load(known.file.read_text(encoding="utf-8"))["automations"]:
            for old in client.read_automations_by_name(wanted["name"]):
                client.delete_automation(old.id)
            if message := wanted.pop("message", None):
                sends = {"type": "send-notification", "subject": "assayline", "body": message}
                calls = {"type": "call-webhook", "payload": message}
                wanted["actions"] = [{"block_document_id": block, **(calls if kind == "webhook" else sends)}]
            client.create_automation(AutomationCore.model_validate(wanted))
            print(f"Created: {wanted['name']}")
    return 0
