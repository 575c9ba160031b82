"""(baseline, measurement, policy) to verdict. Pure; needs no vLLM, no GPU and no
pytest.
"""
