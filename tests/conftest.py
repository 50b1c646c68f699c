"""The tests compute on the CPU, where runs are equal bit for bit, whatever the machine has. To let those that
can use a GPU see one: CUDA_VISIBLE_DEVICES=0 python -m pytest tests/test_listops.py
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
