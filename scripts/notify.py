"""Create the automations of deploy/notify.yaml on Prefect's server, which send notifications of failed nightly runs.

    python scripts/notify.py BLOCK          # notification block, such as webhook/pager or slack-webhook/team

Create the block in Prefect's UI under Blocks. A second call replaces the automations.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import BlockDocument
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

AUTOMATIONS = Path(__file__).resolve().parents[1] / "deploy" / "notify.yaml"


def main() -> int:
    """Create the automations. Return the exit code: 0 created, 2 unknown block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("block", metavar="BLOCK", help="TYPE/NAME, as listed by `prefect block ls`")
    parser.add_argument(
        "--file", type=Path, default=AUTOMATIONS, help="file of the automations (default: deploy/notify.yaml)"
    )
    known = parser.parse_args()
    kind, _, name = known.block.partition("/")
    with get_client(sync_client=True) as client:
        try:
            block = client.read_block_document_by_name(name, kind)
        except ObjectNotFound:
            print(f"error: Unknown block {known.block}.\nhint: list blocks with `prefect block ls`.", file=sys.stderr)
            return 2
        for wanted in yaml.safe_load(known.file.read_text())["automations"]:
            replace_automation(client, wanted, block)
            print(f"Created: {wanted['name']}")
    return 0


def replace_automation(client: SyncPrefectClient, wanted: dict[str, Any], block: BlockDocument) -> None:
    """Create an automation, replacing those with its name."""
    for old in client.read_automations_by_name(wanted["name"]):
        client.delete_automation(old.id)
    if message := wanted.pop("message", None):
        wanted["actions"] = [make_action(message, block)]
    client.create_automation(AutomationCore.model_validate(wanted))


def make_action(message: str, block: BlockDocument) -> dict[str, Any]:
    """Make the action that sends a message with a block: a call of a webhook, or a notification of any other kind."""
    if block.block_type is not None and block.block_type.slug == "webhook":
        return {"type": "call-webhook", "block_document_id": block.id, "payload": message}
    return {"type": "send-notification", "block_document_id": block.id, "subject": "assayline", "body": message}


if __name__ == "__main__":
    sys.exit(main())
