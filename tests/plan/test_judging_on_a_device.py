"""The judge as on a GPU, with kernels in Triton's interpreter: what it finds in memory of the device's."""

from testkit.plan.interpreted import interpreted


def test_right_kernels_serve_and_faults_are_found(tmp_path):
    found = interpreted("judged_as_on_a_gpu", cache=tmp_path, timeout=300)
    for said in found.values():
        assert set(said.pop("right").split(" right on hard inputs")) <= {"right on hard inputs", ""}
    faults = found["joined"]
    assert "an input was written to" in faults.pop("input_written")
    assert "something was written beside a tensor" in faults.pop("beside")
    assert "is wrong on hard inputs: output 0" in faults.pop("last_row")
    assert not faults
