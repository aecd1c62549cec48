"""Load: when requests are due (`arrivals`), what ends the sending (`course`), and when an engine is overrun."""
