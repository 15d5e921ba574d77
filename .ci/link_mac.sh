#!/usr/bin/env bash
# Links the example of anemone-coreml for the Mac against empty stubs of Apple's libraries: that what is called fits together as far as a
# linker sees it. Symbols are left to be looked up at start, and nothing is run.
set -euo pipefail
target=aarch64-apple-darwin
sdk=$(mktemp -d)
trap 'rm -rf "$sdk"' EXIT
stub() {
    mkdir -p "$(dirname "$sdk/$1")"
    printf -- "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '%s'\n...\n" "$2" > "$sdk/$1"
}
for name in System c m pthread dl; do stub usr/lib/lib$name.tbd /usr/lib/libSystem.B.dylib; done
stub usr/lib/libobjc.tbd /usr/lib/libobjc.A.dylib
stub usr/lib/libiconv.tbd /usr/lib/libiconv.2.dylib
for name in Foundation CoreML CoreVideo CoreFoundation IOSurface Metal; do
    version=A
    [ $name = Foundation ] && version=C
    stub System/Library/Frameworks/$name.framework/$name.tbd /System/Library/Frameworks/$name.framework/Versions/$version/$name
done
lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
export SDKROOT=$sdk MACOSX_DEPLOYMENT_TARGET=15.0 CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$lld
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-Clinker-flavor=ld64.lld -Clink-arg=-undefined -Clink-arg=dynamic_lookup"
cargo build --quiet --locked --target $target -p anemone-coreml --example plan
binary=${CARGO_TARGET_DIR:-target}/$target/debug/examples/plan
# A Mach-O of 64 bits for Arm begins so.
[ "$(head -c 8 "$binary" | od -An -tx1 | tr -d ' \n')" = "cffaedfe0c000001" ]
grep -qa "/System/Library/Frameworks/CoreML.framework" "$binary"
echo "linked $(basename "$binary"), $(stat -c %s "$binary") bytes"
