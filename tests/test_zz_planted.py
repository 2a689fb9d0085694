import time
def test_good(): pass
def test_bad():
    assert 1 == 2, "planted"
def test_sleeps(): time.sleep(12)
