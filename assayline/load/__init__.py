"""Load: due times of requests (`arrivals`), and the end of sending (`progress`)."""
