/opt/drfd/bin/python -m pytest -q -p no:cacheprovider tests/system/test_unified.py tests/system/test_enforcement.py -k "next_daemon or holder or user or half" --durations=5
