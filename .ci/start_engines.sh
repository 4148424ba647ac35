#!/usr/bin/env bash
# Install and start the real engines that the integration tests use, on Debian as root:
#   .ci/start_engines.sh DIRECTORY
# prints `export NAME=VALUE` lines for the tests on standard output; everything else goes to standard
# error. Starting it again is harmless. What cannot be had is left out, and said.
set -euo pipefail
work=$(realpath -m "$1")
mkdir -p "$work"
exec 3>&1 1>&2
export DEBIAN_FRONTEND=noninteractive
exec 9>"$work/.lock" # two at a time would write the same files
flock 9
# shellcheck source=/dev/null
. /etc/os-release
apt-get update -qq
mirror=$(apt-cache policy | grep -oE 'https?://[^ ]+/debian' | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}')
packages=(busybox-static mmdebstrap iptables docker.io docker-registry openssh-server rsync runc catatonit netavark aardvark-dns podman
  patchelf squashfs-tools containernetworking-plugins uidmap curl chromium ripgrep btrfs-progs)
if [ "${VERSION_ID%%.*}" -ge 13 ]; then packages+=(docker-cli); fi
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null

# One root file system serves every engine, as no image registry can be reached.
rootfs=$work/rootfs.tar
if [ ! -e "$rootfs" ]; then
  mmdebstrap --quiet --format=tar --variant=minbase --include=python3,ca-certificates,procps \
    --dpkgopt=force-unsafe-io bookworm "$rootfs.part" "$mirror"
  mv "$rootfs.part" "$rootfs"
fi

answers() { curl -sf --unix-socket "$1" http://engine/_ping >/dev/null; }
wait_for() { for _ in $(seq 600); do answers "$1" && return; sleep 0.1; done; return 1; }

import_images() { # client command: the images that tests name
  "$@" image inspect sandbox/debian >/dev/null 2>&1 || "$@" import "$rootfs" sandbox/debian >/dev/null
  if ! "$@" image inspect sandbox/busybox >/dev/null 2>&1; then
    local root
    root=$(mktemp -d)
    mkdir -p "$root"/{bin,tmp,root,etc,proc,dev,sys}
    chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/"
    for applet in $(/bin/busybox --list | grep -vx busybox); do ln -sf busybox "$root/bin/$applet"; done
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
    tar -C "$root" -c . | "$@" import - sandbox/busybox >/dev/null
    rm -rf "$root"
  fi
}

start_docker() {
  local socket=$work/docker.sock
  if ! answers "$socket"; then
    rm -f "$work/docker.pid"
    nohup dockerd --data-root "$work/docker" --exec-root "$work/docker-exec" -H "unix://$socket" \
      -p "$work/docker.pid" >"$work/dockerd.log" 2>&1 3>&- 9>&- </dev/null &
    wait_for "$socket"
  fi
  import_images docker -H "unix://$socket"
  echo "export HERMES_TEST_DOCKER_HOST=unix://$socket" >&3
}

start_podman() {
  local socket=$work/podman.sock
  cat >"$work/containers.conf" <<'C'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
C
  if ! answers "$socket"; then
    CONTAINERS_CONF=$work/containers.conf nohup podman system service --time=0 "unix://$socket" \
      >"$work/podman.log" 2>&1 3>&- 9>&- </dev/null &
    wait_for "$socket"
  fi
  import_images docker -H "unix://$socket"
  echo "export HERMES_TEST_PODMAN_HOST=unix://$socket" >&3
}

start_ssh() {
  # Where the user below can read it: the work directory may lie in somebody's closed home.
  local directory=/var/lib/hermes-environments-ci/ssh
  mkdir -p "$directory" /run/sshd
  [ -e "$directory/host" ] || ssh-keygen -q -t ed25519 -N '' -f "$directory/host"
  [ -e "$directory/id" ] || ssh-keygen -q -t ed25519 -N '' -f "$directory/id"
  install -m 644 "$directory/id.pub" "$directory/authorized_keys"
  cat >"$directory/sshd_config" <<C
Port 22022
ListenAddress 127.0.0.1
HostKey $directory/host
PidFile $directory/sshd.pid
AuthorizedKeysFile $directory/authorized_keys
StrictModes no
PasswordAuthentication no
UsePAM no
UseDNS no
MaxSessions 128
MaxStartups 256:30:512
Subsystem sftp internal-sftp
C
  # A user of its own: root's start-up files may cost more than the commands.
  id sbx >/dev/null 2>&1 || useradd -m -s /bin/sh -p '*' sbx
  if ! kill -0 "$(cat "$directory/sshd.pid" 2>/dev/null || echo 0)" 2>/dev/null || [ ! -s "$directory/sshd.pid" ]; then
    /usr/sbin/sshd -E "$directory/sshd.log" -f "$directory/sshd_config" 3>&- 9>&-
  fi
  echo "[127.0.0.1]:22022 $(cut -d' ' -f1,2 "$directory/host.pub")" >"$directory/known_hosts"
  echo "export HERMES_TEST_SSH='sbx@127.0.0.1:22022?key=$directory/id&known_hosts=$directory/known_hosts'" >&3
}

# Apptainer is packaged only in Debian's unstable suite, for a newer C library than the stable ones
# have; its two programs get that library to themselves.
install_apptainer() {
  apptainer --version >/dev/null 2>&1 && return
  local apt=$work/apt unpacked
  mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$apt/sources.list"
  private_apt() {
    apt-get -qq -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root \
      -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
      -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" "$@"
  }
  unpacked=$(mktemp -d)
  (
    cd "$unpacked"
    private_apt update
    private_apt download apptainer/sid libc6/sid
    dpkg -x apptainer_*.deb program
    dpkg -x libc6_*.deb library
    mkdir -p /opt/apptainer-glibc /var/lib/apptainer/mnt/session
    cp -a library/usr/lib/x86_64-linux-gnu/*.so* /opt/apptainer-glibc/
    for file in program/usr/bin/apptainer program/usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
      patchelf --set-interpreter /opt/apptainer-glibc/ld-linux-x86-64.so.2 --force-rpath \
        --set-rpath /opt/apptainer-glibc "$file"
    done
    cp -a program/. /
  )
  rm -rf "$unpacked"
}

start_apptainer() {
  install_apptainer || { echo "apptainer cannot be installed here; its tests are skipped"; return; }
  sed -i 's/^systemd cgroups = yes/systemd cgroups = no/
    s/^root default capabilities.*/root default capabilities = no/' /etc/apptainer/apptainer.conf
  if [ ! -d "$work/sb" ]; then
    mkdir -p "$work/sb.part"
    tar -C "$work/sb.part" -xf "$rootfs"
    apptainer -q build --sandbox "$work/sb" "$work/sb.part"
    rm -rf "$work/sb.part"
  fi
  echo "export HERMES_TEST_SINGULARITY_IMAGE=$work/sb" >&3
}

start_docker
start_podman
start_ssh
start_apptainer
