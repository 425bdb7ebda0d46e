#!/bin/sh
#DRF -c 2 -m 4G --io data=10M/5M
#DRF -t 1h30m --array 0-9%2 -n "two words"
# a comment
#DRF --after 1:any,2 --retry 3 --notify end
echo hello
