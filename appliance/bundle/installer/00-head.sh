#!/bin/sh
# Installs, upgrades and rolls back Ingot from a bundle, on a machine without a network. It needs Docker with its
# compose plugin, coreutils, grep, sed and GNU tar. docs/air-gap.md has the whole procedure. One file, since it travels
# alone; its source is cut into parts, appliance/bundle/installer.
#
#   sh install.sh [BUNDLE] [--into DIR] [--public-key FILE|KEY] [--yes]     install, upgrade, or resume
#   sh install.sh --rollback [--into DIR] [--yes]                           the previous version, with its data
#   sh install.sh --uninstall [--purge] [--into DIR] [--yes]                --purge: data, models and backups as well
#
# BUNDLE is the file, or its first part FILE.001; by default the only bundle beside this script. DIR is
# /opt/ingot, or where this script was installed. Exit status: 0: done, or nothing to do. 1: a step failed; the text
# says which, and the same command resumes there. 2: wrong usage. 3: this machine cannot take the bundle. 4: the bundle
# is damaged or incomplete, or not signed by the trusted signer. 5: installed, but the engine does not start.
# 6: another install is running.
#
# Trust goes from the signature over SHA256SUMS to every other file. This machine need not have minisign: it runs in
# a container of the gate's image. That image is the installed one, or at a first install the one with this hash, which
# `ingot bundle create` fills in below.
# shellcheck disable=SC2015  # "test && test || die" is no if-then-else: nothing between could fail and be taken for it
gate_sha256=''

set -eu
umask 022
export LC_ALL=C # what cat, df and tar say is read here
project=ingot
engine=ingot-engine
volume=${project}_state
mark=.installation  # in DIR: the number of this installation, and which names below DIR were there before it
# What an install puts below DIR, beside links to compose files. --purge deletes these and nothing else.
ours='releases current previous models backups casts cache-packs .env trusted.pub install.sh install.log .staging
    .rollback'
owner=10001         # group of the containers' user, which may write models
margin=200000000    # bytes that stay free beside what is counted
silent_s=600        # an engine that makes no progress for so long is given up
# Of the site: in the environment at a first install, later in DIR/.env.
settings='INGOT_CONSOLE_PORT INGOT_ENGINE_PORT INGOT_ENGINE_MEMORY INGOT_MODELS INGOT_MEDIA INGOT_GATE_USER INGOT_GPU'
log=''
nl='
'
