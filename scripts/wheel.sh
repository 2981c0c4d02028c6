#!/usr/bin/env bash
# Build the Python package kvmtrace as a wheel in build/wheel: one wheel for every CPython from 3.11
# on. All that takes is in a virtual environment in build/, with the versions of
# python/requirements.txt. PYTHON names another interpreter than python3. PROFILE=dev builds a wheel
# with debug assertions in build/wheel-dev, which takes less time, and which python-test.sh uses.
#
# After a change of python/requirements.in, its versions are made anew by
#   uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
#     python/requirements.in -o python/requirements.txt
. "$(dirname "$0")/lib.sh"
. "$TOP/scripts/python.sh"
export CARGO_TARGET_DIR=$BUILD/target
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
	die "$PYTHON is older than Python 3.11: name another one by PYTHON=…"
venv venv "$TOP/python/requirements.txt" "Python packages" --only-binary :all:
profile=${PROFILE:-release}
out=$BUILD/wheel
[ "$profile" = release ] || out=$BUILD/wheel-$profile
rm -rf "$out"
# The bytes of a release do not depend on the folder.
[ "$profile" != release ] || build_flags
step "$BUILD/log/wheel.log" "building the wheel" \
	"$BUILD/venv/bin/maturin" build --profile "$profile" --locked --manifest-path "$TOP/python/Cargo.toml" \
	--interpreter "$BUILD/venv/bin/python" --out "$out"
say "the wheel: $(ls "$out"/*.whl)"
