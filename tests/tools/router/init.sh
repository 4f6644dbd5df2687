#!/bin/busybox sh
# The first process, from the initial memory disk: modules, then the read-only root.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in $($B cat /modules/base); do
  $B insmod "/modules/$module.ko"
done
while [ ! -b /dev/vda ]; do
  $B usleep 10000
done
$B mount -t ext4 -o ro /dev/vda /router || exec $B poweroff -f
for place in proc sys dev; do
  $B mount --move "/$place" "/router/$place"
done
exec $B switch_root /router /agent
