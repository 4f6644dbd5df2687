#!/bin/sh
# Runs the lines that come over the port called `agent`, each by a shell that has the port as its
# input and outputs, and answers with the status. The line break before the answer is for commands
# whose last line has none.
PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
export PATH HOME
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
for port in /sys/class/virtio-ports/*; do
  read -r name <"$port/name" && [ "$name" = agent ] && device=/dev/${port##*/}
done
exec 3<>"$device"
read -r uptime rest </proc/uptime
echo "@@READY $uptime" >&3
while read -r line <&3; do
  sh -c "$line" <&3 >&3 2>&1 3>&-
  status=$?
  printf '\n@@STATUS %s\n' "$status" >&3
done
poweroff -f
