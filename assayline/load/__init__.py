"""Load: due times of requests (`arrivals`), the end of sending (`progress`), and overload (`saturation`)."""
