# What the scripts for the Python package share. Sourced after lib.sh.
PYTHON=$(command -v "${PYTHON:-python3}") || die "there is no ${PYTHON:-python3}: install python3 and python3-venv"

# venv NAME REQUIREMENTS WHAT OPTION…: an environment of Python in build/NAME with these requirements, installed
# by pip with these options. It is made anew if the interpreter or a version has changed.
venv() {
	local dir=$BUILD/$1 wanted=$2 what=$3 want
	want=$("$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)' && sha256sum <"$wanted")
	[ "$(cat "$dir/made-for" 2>/dev/null)" != "$want" ] || return 0
	rm -rf "$dir"
	"$PYTHON" -m venv "$dir" || die "no virtual environment could be made: install python3-venv"
	step "$BUILD/log/$1.log" "installing $what in build/$1" "$dir/bin/pip" \
		--disable-pip-version-check install --require-hashes "${@:4}" -r "$wanted"
	printf '%s\n' "$want" >"$dir/made-for"
}

# built_wheel PROFILE: builds the wheel, and sets `wheel` and `built` to the folders that it and programs of
# this profile are in.
built_wheel() {
	PROFILE=$1 "$TOP/scripts/wheel.sh"
	case $1 in
	release) wheel=$BUILD/wheel built=$CARGO_TARGET_DIR/release ;;
	dev) wheel=$BUILD/wheel-dev built=$CARGO_TARGET_DIR/debug ;;
	*) die "PROFILE is $1: it must be dev or release" ;;
	esac
}

# install_wheel NAME: installs the wheel of built_wheel in the environment build/NAME.
install_wheel() {
	step "$BUILD/log/$1-wheel.log" "installing the wheel in build/$1" "$BUILD/$1/bin/pip" \
		--disable-pip-version-check install --no-index --no-deps --force-reinstall "$wheel"/*.whl
}
