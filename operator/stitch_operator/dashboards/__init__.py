"""Grafana's dashboards as code: what panels ask and say, and the JSON that Grafana reads."""
