"""assayline: how good, how fast and how dear is this model at these settings on this hardware?

The Prefect-free core. `flows/` compose it, `tasks/` wrap it, `sql/` defines every metric.
"""

__version__ = "0.1.0"
