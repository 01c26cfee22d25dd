#!/bin/sh
# Proves a Debian package: installs it in a bare Debian 12 and boots that in systemd-nspawn, without
# a network. There the service starts, answers, reloads, is started again after a crash, and stops;
# then the package is removed.
#
#   sh deploy/prove-package.sh               # as root; the package of this version in dist/
#   sh deploy/prove-package.sh FILE.deb
#
# Needs debootstrap, systemd-nspawn, Debian's mirror. The bare system stays in build/prove/package.
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/prove.log
root=$PWD/build/prove/package
limit_s=300

package=dist/lssar_$(tree_version)_$(dpkg --print-architecture).deb
if [ $# -ge 1 ]; then
  package=$(from_caller "$1")
fi
if [ ! -f "$package" ]; then
  echo "prove-package: no $package: run sh deploy/package.sh, or name a file" >&2
  exit 77
fi
if ! command -v systemd-nspawn >/dev/null; then
  echo "prove-package: needs systemd-nspawn" >&2
  exit 77
fi

start_log
name=$(dpkg-deb --field "$package" Package) # lssar or lssar-cuda

make_bare_system bookworm systemd,systemd-sysv,dbus,ca-certificates,curl,procps
for earlier in lssar lssar-cuda; do
  if chroot "$root" dpkg-query -W "$earlier" >/dev/null 2>&1; then
    logged chroot "$root" dpkg --purge "$earlier"
  fi
done
rm -rf "$root/prove" "$root/var/lib/lssar" "$root/var/lib/lssar-server"
mkdir -p "$root/prove" "$root/var/lib/lssar"
cp "$package" "$root/prove/lssar.deb"
cp -R models/zoo/lssar-6m "$root/var/lib/lssar/model"
# The settings that server.toml has as comments.
cat >"$root/prove/more.toml" <<'END'
api-keys = "/etc/lssar/keys.toml"
batch-dir = "/var/lib/lssar-server"
END
say "apt install $(basename "$package")"
logged env DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" \
  sh -c 'apt-get -qq update && apt-get -qq -y install --no-install-recommends /prove/lssar.deb'
chroot "$root" dpkg-query -W -f '${Package} ${Version}: ${Depends}\n' "$name"

echo "name=$name" >"$root/prove/run.sh"
cat >>"$root/prove/run.sh" <<'END'
set -eux
# Returns when the server has said READY=1.
systemctl enable --now lssar-server
systemctl show --property=Type,StatusErrno,NRestarts,User,MainPID lssar-server
lssar generate 'The old house' --max-tokens 5 --seed 1
lssar generate 'A number:' --max-tokens 9 --seed 1 --regex '[0-9]{3}' | grep -E '[0-9]{3}'
curl --silent --fail http://127.0.0.1:8080/health
[ "$(ps -o user:32= -C lssar-server)" = lssar-server ]

systemctl reload lssar-server
until journalctl --unit=lssar-server --output=cat | grep '"model kept"'; do sleep 0.2; done

first=$(systemctl show --value --property=MainPID lssar-server)
kill -SEGV "$first"
until [ "$(systemctl show --value --property=NRestarts lssar-server)" = 1 ] &&
  systemctl is-active --quiet lssar-server; do
  sleep 0.5
done
lssar generate 'The old house' --max-tokens 5 --seed 1

# Keys that the service reads by its group, and a directory for batches.
key=a-key-of-sixteen-characters
printf '[user]\nkey = "%s"\n' "$key" >/etc/lssar/keys.toml
chgrp lssar-server /etc/lssar/keys.toml
chmod 640 /etc/lssar/keys.toml
cat /prove/more.toml >>/etc/lssar/server.toml
systemctl restart lssar-server
if curl --silent --fail http://127.0.0.1:8080/v1/files; then exit 1; fi
curl --silent --fail --header "Authorization: Bearer $key" http://127.0.0.1:8080/v1/files
[ "$(stat --format='%U %a' /var/lib/lssar-server)" = 'lssar-server 700' ]

# An update after which the service does not start succeeds; a setting that it does not know is no
# reason to start it again and again.
cp /etc/lssar/server.toml /prove/good.toml
echo 'no-such-setting = 1' >>/etc/lssar/server.toml
dpkg --install /prove/lssar.deb </dev/null
sleep 6 # longer than RestartSec
[ "$(systemctl show --value --property=ActiveState lssar-server)" = failed ]
cp /prove/good.toml /etc/lssar/server.toml
systemctl restart lssar-server

systemctl stop lssar-server
[ "$(systemctl show --value --property=Result lssar-server)" = success ]
journalctl --unit=lssar-server --output=cat | grep '"stopped"' | grep '"aborted_calls":false'

# The service is as it was where a package is removed and one takes its place, as apt does it
# with lssar-cuda for lssar.
systemctl start lssar-server
dpkg --remove "$name"
dpkg --install /prove/lssar.deb </dev/null
systemctl is-enabled lssar-server
systemctl is-active lssar-server

[ -f /usr/share/man/man1/lssar-server.1.gz ] || [ -f /usr/share/man/man1/lssar-server.1 ]
dpkg --remove "$name"
[ ! -e /usr/bin/lssar-server ] && [ -f /etc/lssar/server.toml ]
dpkg --purge "$name"
[ ! -e /etc/lssar/server.toml ]
touch /prove/passed
END
cat >"$root/etc/systemd/system/prove.service" <<'END'
[Service]
Type=oneshot
ExecStart=/bin/sh /prove/run.sh
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=file:/prove/output
StandardError=inherit
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../prove.service "$root/etc/systemd/system/multi-user.target.wants/"

say "Booting it in systemd-nspawn"
code=0
timeout --kill-after=10 "$limit_s" systemd-nspawn --quiet --register=no --keep-unit \
  --private-network --directory="$root" --boot --console=pipe </dev/null >>"$log" 2>&1 || code=$?
if [ ! -f "$root/prove/output" ]; then
  tail -n 20 "$log"
  echo "prove-package: systemd-nspawn does not boot here (exit code $code)" >&2
  exit 77
fi
cat "$root/prove/output"
if [ ! -f "$root/prove/passed" ]; then
  echo "prove-package: FAILED" >&2
  exit 1
fi
