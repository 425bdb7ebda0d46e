"""Child processes that compute for the controller: forecasts, reports, the account of promises."""
