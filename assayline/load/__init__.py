"""Load: due times of requests (`arrivals`), the end of sending (`course`), and overload (`saturation`)."""
