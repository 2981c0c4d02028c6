#!/bin/sh
# Made boot.vmt in a guest. The kernel's options: vmtrace=early,refs,evms=512,size=128M random.trust_cpu=on
set -e
/sbin/init; sleep 1
activator on --early --pack=zstd -o /tmp/boot.vmt
cd /tmp && echo 'int main(void) { return 0; }' > m.c && gcc m.c -o m && ./m
activator off
