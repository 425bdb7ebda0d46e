"""The engine: stimuli in, decisions into the ledger and the journal, effects out.

It knows neither clients nor the launcher's protocol, and its clock is a parameter.
"""
