#!/bin/sh
# packaging/deb.sh STAGE VERSION OUT - packs what `make install` put below STAGE/usr as the package
# OUT. Dependencies are those of the binaries' libraries. Times are those of SOURCE_DATE_EPOCH, if
# set.
set -eu
stage=$(realpath "$1") version=$2 out=$3
source=$(cd "$(dirname "$0")/.." && pwd)
deploy=$source/examples/deploy
document=$stage/usr/share/doc/cairn

# Units name the installed command.
for unit in cairn-agent.service cairn-metrics.service cairn-enforce@.service \
    cairn-enforce.socket; do
    install -D -m 644 "$deploy/$unit" "$stage/usr/lib/systemd/system/$unit"
    sed -i 's|/usr/local/bin/cairn|/usr/bin/cairn|' "$stage/usr/lib/systemd/system/$unit"
done
install -D -m 644 "$source/packaging/cairn.sysusers" "$stage/usr/lib/sysusers.d/cairn.conf"
for script in start.sh ready.sh; do
    install -D -m 755 "$deploy/kubernetes/$script" "$stage/usr/lib/cairn/kubernetes/$script"
done
install -d -m 755 "$stage/etc/cairn"
install -D -m 644 "$source/README.md" "$document/README.md"
install -D -m 644 "$source/packaging/copyright" "$document/copyright"
for page in OPERATIONS CONFIG TRAINING SECURITY; do
    install -D -m 644 "$source/docs/$page.md" "$document/docs/$page.md"
done
mkdir -p "$document/examples"
cp -r "$deploy/." "$document/examples"
"$stage/usr/bin/cairn" agent --sample > "$document/examples/agent.yaml"
chmod 644 "$document/examples/agent.yaml"
mkdir -p "$stage/usr/share/zsh/vendor-completions" # Debian's place
mv "$stage/usr/share/zsh/site-functions/_cairn" "$stage/usr/share/zsh/vendor-completions/"
rmdir "$stage/usr/share/zsh/site-functions"
gzip -9nf "$stage"/usr/share/man/man1/*.1

libraries=$(find "$stage/usr/lib" -maxdepth 1 -name '*.so*' -type f)
# shellcheck disable=SC2086
strip --strip-unneeded --remove-section=.comment "$stage/usr/bin/cairn" $libraries

mkdir -p "$stage/DEBIAN" "$stage/debian"
printf 'Source: cairn\n\nPackage: cairn\nArchitecture: any\n' > "$stage/debian/control"
# shellcheck disable=SC2086
depends=$(cd "$stage" && dpkg-shlibdeps -O usr/bin/cairn $libraries)
depends=${depends#shlibs:Depends=}
rm -r "$stage/debian"
cat > "$stage/DEBIAN/control" << CONTROL
Package: cairn
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The Cairn developers <cairn@localhost>
Section: admin
Priority: optional
Depends: $depends
Recommends: libipsec-mb1
Suggests: libfabric1, python3, netcat-openbsd, systemd
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Description: snapshots of training jobs in the memory of their nodes
 An agent on each node keeps the sharded state of a distributed training job in
 memory, protects it across nodes by erasure coding, and restores it after
 losses. It also finds slow ranks and converts checkpoints.
 .
 This package has the command, libcairn with its headers, the bindings of
 PyTorch, NCCL's profiler plugin, and units of systemd, none of which is
 enabled.
CONTROL
echo 'activate-noawait ldconfig' > "$stage/DEBIAN/triggers"
(cd "$stage" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
    > "$stage/DEBIAN/md5sums"
chmod 644 "$stage"/DEBIAN/*
mkdir -p "$(dirname "$out")"
dpkg-deb --root-owner-group -Zxz --build "$stage" "$out"
