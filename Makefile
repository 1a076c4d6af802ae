# Cairn: one Makefile, no recursion, no configure.
#   make                 ./cairn, lib/libcairn.so, lib/libnccl-profiler-cairn.so, examples/gpt
#   make demo | test     install what is missing, then run the main job | pass the tests
#   make gpu             what needs a CUDA device or NCCL, with its figures
#   make check           unit and fault tests without installing anything
#   make sim [SEEDS=N] [SEED=S] [AGENTS=N] | placements [SEEDS=N] [SEED=S]        simulators
#   make explore | cluster | interop | fuzz                                       one suite
#   make hostile         attacks of the cluster suite at full scale
#   make manual          man pages and completions; make install puts them below PREFIX/share
#   make deb             build/deb/cairn_VERSION_ARCH.deb
#   make style | layers | headers | format                      all style gates | one | reformat
#   make bench | bench-peers | bench-convert | bench-detect | bench-plan | bench-releases OLD=folder
# Knobs: SAN=address,undefined | thread   CC=clang   V=1   BUILD=folder
comma := ,
SAN   ?=
V     ?=
Q     := $(if $(V),,@)
CC    := $(if $(filter default,$(origin CC)),gcc,$(CC))
BUILD ?= build/$(or $(subst $(comma),-,$(SAN)),plain)
PREFIX ?= /usr/local

MODULES := base erasure transport snapshot client replan agent tools
OPTIMIZE ?= $(if $(SAN),-O1 -fno-omit-frame-pointer,-O2)
# Sanitizers' reports only need line numbers; that saves three quarters of the compile time.
DEBUG    ?= $(if $(SAN),-g1,-g)
CPPFLAGS := -I. -Iinclude -D_GNU_SOURCE $(if $(SAN),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
CFLAGS  := -std=c11 $(OPTIMIZE) $(DEBUG) -fPIC -pthread -Wall -Wextra -Wshadow -Wconversion \
           -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Werror \
           -fstack-protector-strong $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all \
           $(if $(findstring gcc,$(CC)),-Wno-format-truncation),-ffunction-sections -fdata-sections)
LDFLAGS := -pthread -Wl,-z,relro,-z,now,-z,noexecstack $(if $(SAN),-fsanitize=$(SAN))
# Products drop what nothing calls. gold links tests in half the time.
PRODUCT_LDFLAGS := $(LDFLAGS) $(if $(SAN),,-Wl,--gc-sections)
LDFLAGS += $(if $(shell command -v ld.gold),-fuse-ld=gold)

# Debian 12 packages; `make deps` installs the missing ones. Only tests need the second list.
PACKAGES := gcc make pkg-config libfabric-dev libisal-dev librocksdb-dev libyaml-dev libssl-dev \
            libipsec-mb-dev libmicrohttpd-dev liburing-dev
TEST_PACKAGES := libcmocka-dev clang-14 libclang-rt-14-dev clang-format-14 cppcheck black \
                 python3 python3-venv iproute2 systemd netcat-openbsd openssl slurm-wlm \
                 python3-prometheus-client mandoc

# Disk I/O by io_uring where liburing is there; threads otherwise (base/file_queue.h).
HAS_LIBURING   := $(shell pkg-config --exists liburing 2>/dev/null && echo 1)
LIBS_base      := -lisal -lcrypto -lyaml $(if $(HAS_LIBURING),-luring)
LIBS_erasure   := -lisal
LIBS_transport := -lssl -ldl
LIBS_snapshot  := -lrocksdb -ldl -lm
LIBS_tools     := -lmicrohttpd
LIBS_ALL       := $(LIBS_tools) $(LIBS_transport) $(LIBS_snapshot) $(LIBS_base)

# All C that is ours, tests included.
C_FILES = $(sort $(shell find include $(MODULES) bindings/nccl examples/gpt tests -name '*.[ch]'))
PY_FILES = $(sort $(shell find bindings tests -name "*.py"))
SRC_OF  = $(sort $(shell find $(1) -name '*.c'))
OBJ_OF  = $(patsubst %.c,$(BUILD)/%.o,$(call SRC_OF,$(1)))
ARCHIVES := $(foreach m,$(MODULES),$(if $(call SRC_OF,$(m)),$(BUILD)/lib$(m).a))
# The header has the library's version; the soname has its first number.
LIBRARY_VERSION := $(shell sed -n \
    's/^.define CAIRN_LIBRARY_VERSION "\(.*\)"$$/\1/p' include/cairn/client.h)
LIBRARY_SONAME  := libcairn.so.$(firstword $(subst ., ,$(LIBRARY_VERSION)))
LIBRARY_FILE    := libcairn.so.$(LIBRARY_VERSION)
GPT_OBJ  := $(patsubst %.c,$(BUILD)/%.o,$(wildcard examples/gpt/*.c))

# The archives that a test of a module may link: its own and those below it (docs/ARCHITECTURE.md).
NEEDS_base := base
NEEDS_erasure := erasure base
NEEDS_transport := transport base
NEEDS_snapshot := snapshot base
NEEDS_client := client replan snapshot base
NEEDS_agent := agent client snapshot erasure transport replan base
NEEDS_replan := replan base
NEEDS_tools := tools agent replan client snapshot erasure transport base
ARCHIVES_FOR = $(foreach m,$(NEEDS_$(1)),$(filter $(BUILD)/lib$(m).a,$(ARCHIVES)))
# In a recipe: the archives that the target depends on, in any order.
LINK_ARCHIVES = -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

.PHONY: all FORCE clean deps test-deps demo test check sim placements cluster interop fuzz bench
.PHONY: bench-peers hostile interop-apps
.PHONY: gpu bench-convert bench-releases explore style layers headers format install uninstall
.SECONDARY:
.DELETE_ON_ERROR:
all: $(BUILD)/cairn $(BUILD)/libcairn.so $(BUILD)/libnccl-profiler-cairn.so $(BUILD)/gpt
	$(Q)ln -sfn $(BUILD)/cairn cairn && mkdir -p lib && \
	    ln -sfn ../$(BUILD)/$(LIBRARY_FILE) lib/$(LIBRARY_FILE) && \
	    ln -sfn $(LIBRARY_FILE) lib/$(LIBRARY_SONAME) && \
	    ln -sfn $(LIBRARY_SONAME) lib/libcairn.so && \
	    ln -sfn ../$(BUILD)/libnccl-profiler-cairn.so lib/libnccl-profiler-cairn.so

$(BUILD)/flags: FORCE
	$(Q)mkdir -p $(@D) && echo '$(CC) $(CPPFLAGS) $(CFLAGS)' | cmp -s - $@ || \
	    echo '$(CC) $(CPPFLAGS) $(CFLAGS)' > $@
$(BUILD)/%.o: %.c $(BUILD)/flags
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS) $(CFLAGS) $(CFLAGS_EXTRA) -MMD -MP -c -o $@ $<
$(BUILD)/base/file_ring.o: CFLAGS_EXTRA = $(if $(HAS_LIBURING),-DCAIRN_HAS_LIBURING)
# libfabric is opened at run time, with the symbols' version that linking it would have taken.
FABRIC_ABI = $(shell nm -D --with-symbol-versions "$$($(CC) -print-file-name=libfabric.so)" | \
                 sed -n 's/.* fi_getinfo@@//p')
$(BUILD)/transport/fabric.o: CFLAGS_EXTRA = -DFABRIC_ABI='"$(FABRIC_ABI)"'
# cmocka and tables of callbacks fix the parameters of tests, which need few of them.
$(BUILD)/tests/%.o $(BUILD)/sim/tests/%.o $(BUILD)/explore/tests/%.o $(BUILD)/larger/tests/%.o: \
    CFLAGS_EXTRA = -Wno-unused-parameter
# The planner must fill these tables in milliseconds: -O3 vectorizes their inner loops.
VECTORIZED := bound/parts.o assign/table.o assign/slots.o
$(VECTORIZED:%=$(BUILD)/replan/%): CFLAGS_EXTRA = $(if $(SAN),,-O3)
# The maps that are built in are part of this object.
$(BUILD)/tools/convert/maps/presets.o: $(wildcard tools/convert/maps/presets/*.map)
define archive_rule
$(BUILD)/lib$(1).a: $(call OBJ_OF,$(1))
	$$(Q)rm -f $$@ && ar rcsP $$@ $$^
endef
$(foreach m,$(MODULES),$(eval $(call archive_rule,$(m))))

$(BUILD)/cairn: $(call ARCHIVES_FOR,tools)
	$(Q)$(CC) $(PRODUCT_LDFLAGS) -o $@ $(LINK_ARCHIVES) $(LIBS_ALL)
# client/libcairn.map names the exported symbols. The library stays in memory (nodelete), because
# exit(3) calls into it after cairn_client_close_at_exit.
LINK_LIBRARY = $(CC) $(PRODUCT_LDFLAGS) -shared -Wl,-soname,$(LIBRARY_SONAME) -Wl,-z,nodelete \
               -Wl,--version-script=client/libcairn.map
$(BUILD)/$(LIBRARY_FILE): $(call ARCHIVES_FOR,client) client/libcairn.map
	$(Q)$(LINK_LIBRARY) -o $@ -Wl,--whole-archive $(BUILD)/libclient.a -Wl,--no-whole-archive \
	    $(LINK_ARCHIVES) -lisal -ldl -lm
$(BUILD)/$(LIBRARY_SONAME): $(BUILD)/$(LIBRARY_FILE)
	$(Q)ln -sfn $(<F) $@
$(BUILD)/libcairn.so: $(BUILD)/$(LIBRARY_SONAME)
	$(Q)ln -sfn $(<F) $@
# NCCL's profiler plugin. NCCL opens it by this name, and its symbols carry NCCL's versions in their
# names. NCCL closes it while its threads may still call it: it stays in memory.
NCCL_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard bindings/nccl/*.c) client/timing.c base/ring.c)
$(BUILD)/libnccl-profiler-cairn.so: $(NCCL_OBJ) bindings/nccl/libnccl-profiler-cairn.map
	$(Q)$(CC) $(PRODUCT_LDFLAGS) -shared -Wl,-soname,libnccl-profiler-cairn.so -Wl,-z,nodelete \
	    -Wl,--version-script=bindings/nccl/libnccl-profiler-cairn.map -o $@ $(NCCL_OBJ) -ldl
$(BUILD)/gpt: $(GPT_OBJ) $(BUILD)/libcairn.so
	$(Q)$(CC) $(PRODUCT_LDFLAGS) -o $@ $(GPT_OBJ) -L$(BUILD) -lcairn -lm -lcrypto \
	    -Wl,-rpath,'$$ORIGIN'

# ---- unit and fault tests: tests/unit/<path of the source>/test_<noun>.c, tests/fault/ ----
# The fake CUDA driver is a library that the code under test opens by path.
SUPPORT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))
$(BUILD)/libfakecuda.so: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/fakecuda/*.c))
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^
CUDA_TESTS := $(addprefix snapshot/,test_mem test_capture test_capture_ends) client/test_device \
    tools/test_bench_device
$(CUDA_TESTS:%=$(BUILD)/tests/unit/%): | $(BUILD)/libfakecuda.so
$(BUILD)/tests/unit/client/test_client: | $(BUILD)/libcairn.so
# Callers and a library of a later version, in which every struct that grows has more fields.
LARGER := $(BUILD)/larger
$(LARGER)/made: tests/support/abi/larger.py $(wildcard include/cairn/*.h)
	$(Q)mkdir -p $(@D) && python3 $< include/cairn $(LARGER)/include/cairn && touch $@
$(LARGER)/%.o: %.c $(BUILD)/flags $(LARGER)/made
	$(Q)mkdir -p $(@D) && $(CC) -I$(LARGER)/include $(CPPFLAGS) $(CFLAGS) $(CFLAGS_EXTRA) \
	    -MMD -MP -c -o $@ $<
LARGER_OBJ := $(patsubst $(BUILD)/%,$(LARGER)/%,$(call OBJ_OF,client snapshot))
$(LARGER)/librest.a: $(filter $(LARGER)/snapshot/%,$(LARGER_OBJ))
	$(Q)rm -f $@ && ar rcsP $@ $^
$(LARGER)/libcairn.so: $(filter $(LARGER)/client/%,$(LARGER_OBJ)) $(LARGER)/librest.a
$(LARGER)/libcairn.so: $(BUILD)/libreplan.a $(BUILD)/libbase.a client/libcairn.map
	$(Q)$(LINK_LIBRARY) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) -lisal -ldl -lm
ABI_CALLERS := $(BUILD)/tests/support/abi/caller.o $(LARGER)/tests/support/abi/caller.o
$(BUILD)/tests/unit/client/test_abi: $(ABI_CALLERS) | $(BUILD)/libcairn.so $(LARGER)/libcairn.so
UNIT_SRC  := $(sort $(shell find tests/unit -name 'test_*.c'))
FAULT_SRC := $(wildcard tests/fault/test_*.c)
UNIT_BIN  := $(patsubst %.c,$(BUILD)/%,$(UNIT_SRC))
FAULT_BIN := $(patsubst %.c,$(BUILD)/%,$(FAULT_SRC))
define unit_rule
$(BUILD)/tests/unit/$(1)/%: $(BUILD)/tests/unit/$(1)/%.o $(SUPPORT_OBJ) $(call ARCHIVES_FOR,$(1))
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) $$(LINK_ARCHIVES) $$(LIBS_ALL) \
	    -lcmocka -lm
endef
$(foreach m,$(MODULES),$(eval $(call unit_rule,$(m))))
# Link speeds are measured on jobs of the traces' simulator.
$(BUILD)/tests/unit/replan/search/test_search: $(BUILD)/tests/bench/made.o \
    $(BUILD)/tests/bench/baseline_greedy.o
# They read the command's JSON with the command's own tree.
$(filter %/test_operator_coverage %/test_operator_launcher %/test_operator_poison \
  %/test_operator_replan %/test_operator_report,$(UNIT_BIN)): $(BUILD)/libtools.a
SECOND_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/generate.c, \
    $(wildcard tests/traces/second/*.c)))
$(BUILD)/tests/unit/replan/detect/test_second: $(SECOND_OBJ) $(BUILD)/tests/traces/random.o
$(BUILD)/tests/unit/replan/profile/test_links $(BUILD)/tests/unit/replan/detect/test_normal: \
    $(BUILD)/tests/traces/simulate.o $(BUILD)/tests/traces/random.o
$(BUILD)/tests/unit/examples/gpt/%: $(BUILD)/tests/unit/examples/gpt/%.o \
    $(filter-out %/main.o,$(GPT_OBJ)) $(BUILD)/libcairn.so
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD) -lcairn -lcrypto -lcmocka -lm \
	    -Wl,-rpath,$(abspath $(BUILD))
# The tests open the plugin by path, as NCCL does, and another plugin that it is chained to. They
# also link the plugin's pure parts and the reader of its ring.
$(BUILD)/tests/unit/bindings/nccl/%: $(BUILD)/tests/unit/bindings/nccl/%.o \
    $(BUILD)/tests/support/nccl/fake_nccl.o $(BUILD)/bindings/nccl/sampler.o \
    $(call ARCHIVES_FOR,replan) \
    | $(BUILD)/libnccl-profiler-cairn.so $(BUILD)/libnccl-profiler-recording.so
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_base) -lcmocka -ldl -lm
$(BUILD)/libnccl-profiler-recording.so: $(BUILD)/tests/support/nccl/recording_plugin.o
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $^
$(BUILD)/tests/fault/%: $(BUILD)/tests/fault/%.o $(SUPPORT_OBJ) $(call ARCHIVES_FOR,tools)
	$(Q)$(CC) $(LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc -o $@ \
	    $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_ALL) -lcmocka -lm

# Real hardware only; each exits with 77 and the reason where there is none.
GPU_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/gpu/test_*.c))
$(BUILD)/tests/gpu/%: $(BUILD)/tests/gpu/%.o $(SUPPORT_OBJ) $(call ARCHIVES_FOR,snapshot)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_ALL) -lcmocka -lm
# Labelled traces of simulated jobs, and the verdicts of `cairn detect` on them.
# ARGS=--generator second | --traces N | --seed N | --case NAME | --quiet-steps N
$(BUILD)/tests/traces/generate: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/traces/*.c))
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lm
$(BUILD)/tests/traces/second/generate: $(BUILD)/tests/traces/second/generate.o $(SECOND_OBJ) \
    $(BUILD)/tests/traces/random.o
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lm
.PHONY: bench-detect
bench-detect: all $(BUILD)/tests/traces/generate $(BUILD)/tests/traces/second/generate
	$(Q)python3 tests/traces/bench.py --build $(BUILD) $(ARGS)
# Plans and assignments beside a proven bound and other planners.
# ARGS=--full | --only gap|time|rivals|malleus|simulation|assign|sequences
BENCH_PLAN_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/bench/*.c))
$(BUILD)/tests/bench/bench_plan: $(BENCH_PLAN_OBJ) $(call ARCHIVES_FOR,client)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_snapshot) $(LIBS_base)
.PHONY: bench-plan
bench-plan: $(BUILD)/tests/bench/bench_plan
	$(Q)$< $(ARGS)
# libFuzzer: make fuzz-bins CC=clang-14 SAN=fuzzer-no-link,address,undefined BUILD=build/fuzz
FUZZ_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
# What no fuzzer reaches is not compiled for them. If a fuzzer does not link, add the file that it
# needs to FUZZ_KEPT.
FUZZ_LEFT_OUT := $(wildcard client/*.c tools/*.c)
FUZZ_KEPT := $(wildcard client/session*.c tools/tree.c)
FUZZ_SRC := $(filter-out $(filter-out $(FUZZ_KEPT),$(FUZZ_LEFT_OUT)),$(call SRC_OF,$(MODULES)))
$(BUILD)/libfuzzed.a: $(FUZZ_SRC:%.c=$(BUILD)/%.o)
	$(Q)rm -f $@ && ar rcsP $@ $^
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libfuzzed.a
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_ALL) -lm
# Seeds of the fuzzers of packed formats. To make them again:
# build/plain/tests/fuzz/make_seeds tests/fuzz/corpus
$(BUILD)/tests/fuzz/make_seeds: $(BUILD)/tests/fuzz/make_seeds.o $(call ARCHIVES_FOR,tools)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_ALL) -lm
.PHONY: unit-bins fault-bins gpu-bins fuzz-bins
unit-bins: $(UNIT_BIN)
fault-bins: $(FAULT_BIN)
gpu-bins: $(GPU_BIN)
fuzz-bins: $(FUZZ_BIN)
deps:
	$(Q)tests/deps.sh $(PACKAGES)
test-deps:
	$(Q)tests/deps.sh $(PACKAGES) $(TEST_PACKAGES)
# Everything: style, units, faults, sanitizers, fuzzers, simulator, cluster, interop. `make check`
# is the quick part.
test: test-deps
	$(Q)python3 tests/runner.py all
check:
	$(Q)python3 tests/runner.py unit fault style
fuzz:
	$(Q)python3 tests/runner.py fuzz
# Every path that needs a CUDA device or NCCL, with its figures; skips where there is no device.
# ARGS="--python PATH --only PART --folder DIR"
gpu: all gpu-bins
	$(Q)python3 tests/gpu/run.py $(ARGS); code=$$?; test $$code -eq 77 || exit $$code
demo: deps
	$(Q)$(MAKE) --no-print-directory all && ./cairn demo
# Real processes on loopback; a trainer whose state is known beforehand.
CLUSTER_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/cluster/*.c))
$(BUILD)/tests/cluster/%: $(BUILD)/tests/cluster/%.o $(BUILD)/libcairn.so
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -L$(BUILD) -lcairn -Wl,-rpath,$(abspath $(BUILD))
# The library with a capture that a test can stop half-way; all its symbols are seen.
$(BUILD)/libcairn_gated.so: $(BUILD)/tests/interop/gated_copy.o $(call ARCHIVES_FOR,client)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,--wrap=cairn_copy_crc -o $@ $< \
	    -Wl,--whole-archive $(BUILD)/libclient.a -Wl,--no-whole-archive $(LINK_ARCHIVES) \
	    -lisal -ldl -lm
# Agents of a later version: `newer` still speaks this one's protocol, `foreign` does not. Only the
# files that know the version differ.
VERSIONED := $(shell grep -rl agent/process/protocol.h agent tools --include='*.c')
LATER := $(shell expr 1 + $$(sed -n 's/^.define CAIRN_PROTOCOL_NEWEST \([0-9]*\).*/\1/p' \
    agent/process/protocol.h))
$(BUILD)/newer/%.o: CFLAGS_EXTRA = -DCAIRN_PROTOCOL_NEWEST=$(LATER)
$(BUILD)/foreign/%.o: CFLAGS_EXTRA = -DCAIRN_PROTOCOL_NEWEST=$(LATER) \
    -DCAIRN_PROTOCOL_OLDEST=$(LATER)
define later_rule
$(BUILD)/$(1)/%.o: %.c $(BUILD)/flags
	$$(Q)mkdir -p $$(@D) && $$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(CFLAGS_EXTRA) -MMD -MP -c -o $$@ $$<
$(BUILD)/$(1)/cairn: $(VERSIONED:%.c=$(BUILD)/$(1)/%.o) $(call ARCHIVES_FOR,tools)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) $$(LINK_ARCHIVES) $$(LIBS_ALL)
endef
$(foreach later,newer foreign,$(eval $(call later_rule,$(later))))
# Loaded into an agent, it makes calls hang.
$(BUILD)/tests/support/faults/faults.o: CFLAGS_EXTRA += -U_FORTIFY_SOURCE
$(BUILD)/libfaults.so: $(BUILD)/tests/support/faults/faults.o
	$(Q)$(CC) -shared -o $@ $< -ldl
# A GPU that says what a test wants it to say.
$(BUILD)/libfakenvml.so: $(BUILD)/tests/support/nvml/nvml.o
	$(Q)$(CC) -shared -o $@ $<
# Speaks to agents as one of them, and makes claims that no agent makes.
$(BUILD)/stranger: $(BUILD)/tests/support/stranger/stranger.o $(call ARCHIVES_FOR,agent)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(LINK_ARCHIVES) $(LIBS_ALL)
.PHONY: cluster-bins
cluster-bins: $(CLUSTER_BIN) $(BUILD)/libfaults.so $(BUILD)/libfakenvml.so $(BUILD)/stranger
cluster-bins: $(BUILD)/newer/cairn $(BUILD)/foreign/cairn
cluster:
	$(Q)python3 tests/runner.py cluster
# Attacks at full scale: the key changes 1,000 times under load, certificates 100 times, and a
# million mutated frames, twice. Half an hour on two idle cores.
hostile: all cluster-bins
	$(Q)HOSTILE_SCALE=50 python3 tests/hostile/test_keys.py Keys.test_rotation_under_load
	$(Q)HOSTILE_SCALE=25 python3 tests/hostile/test_certificates.py \
	    Certificates.test_renewal_under_load
	$(Q)HOSTILE_SCALE=334 python3 tests/hostile/test_wire.py Wire.test_mutated_frames \
	    Wire.test_mutated_frames_of_a_stranger
# Real safetensors and PyTorch (CPU, gloo), in build/venv.
interop:
	$(Q)python3 tests/runner.py interop
# Programs of libraries from PyPI, unmodified, under `cairn run`: killed, resumed and compared, in
# build/venv-apps (6 GB with torch for CUDA, 10 minutes). ARGS=WORD: only programs with it.
interop-apps: all
	$(Q)python3 tests/runner.py apps && build/venv-apps/bin/python tests/interop/apps.py $(ARGS)
# A PyTorch job protected by Cairn beside one that saves with torch's own means: 20 GiB, a quarter
# of an hour. ARGS=--json | --small | --rounds N. Then how jobs come back after the loss of a node,
# beside torchrun with c10d and torchft: ten minutes. COMEBACK_ARGS=--json | --rounds N
# ARGS="--only migrate": what a slow rank costs, by what is done about it, five minutes.
# ARGS="--only attached": DeepSpeed and Megatron-Core beside their own async saves, five minutes.
bench-peers: all
	$(Q)python3 tests/runner.py environment && $(if $(filter migrate attached,$(ARGS)), \
	    build/venv/bin/python tests/interop/bench_$(filter migrate attached,$(ARGS)).py \
	    $(filter-out --only migrate attached,$(ARGS)), \
	    build/venv/bin/python tests/interop/bench_peers.py $(ARGS) && \
	    build/venv/bin/python tests/interop/bench_comeback.py $(COMEBACK_ARGS))
# The agents of two builds in turns, half an hour: OLD=build folder of the other, ARGS="--rounds N"
bench-releases: all cluster-bins
	$(Q)python3 tests/cluster/bench_releases.py $(ARGS) $(OLD) $(BUILD)
# Conversions beside the frameworks' own tools: 12 GiB of disk, a quarter of an hour.
# ARGS=--json | --small | --rounds N | --only WORD
bench-convert: all
	$(Q)python3 tests/runner.py environment && \
	    build/venv/bin/python tests/interop/bench_convert.py $(ARGS)
style:
	$(Q)python3 tests/runner.py style
format:
	clang-format-14 -i $(C_FILES)
	black -q $(PY_FILES)
# Man pages, and completions of bash, zsh and fish, from the command's tables of options.
VERBS  := $(shell sed -n 's/^    {"\([a-z]*\)", ".*/\1/p' tools/main.c)
PAGES  := $(BUILD)/man/cairn.1 $(VERBS:%=$(BUILD)/man/cairn-%.1)
SHELLS := bash:share/bash-completion/completions/cairn zsh:share/zsh/site-functions/_cairn \
          fish:share/fish/vendor_completions.d/cairn.fish
COMPLETIONS := $(foreach s,$(SHELLS),$(BUILD)/completions/$(firstword $(subst :, ,$(s))))
.PHONY: manual
manual: $(PAGES) $(COMPLETIONS)
$(PAGES): $(BUILD)/cairn
	$(Q)mkdir -p $(@D) && $< manual man $(patsubst cairn-%.1,%,$(filter cairn-%,$(@F))) > $@
$(COMPLETIONS): $(BUILD)/cairn
	$(Q)mkdir -p $(@D) && $< manual $(@F) > $@
# What install puts below PREFIX and uninstall removes: mode:source:place, and link:target. Shared
# folders (bin, lib, lib/pkgconfig, include) stay.
PYTHON_MODULES := $(sort $(shell find bindings/python/cairn -name '*.py' -o -name py.typed \
                         -o -path '*.dist-info/*'))
INSTALLED := 755:$(BUILD)/cairn:bin/cairn 755:$(BUILD)/$(LIBRARY_FILE):lib/$(LIBRARY_FILE) \
    755:$(BUILD)/libnccl-profiler-cairn.so:lib/libnccl-profiler-cairn.so \
    644:$(BUILD)/cairn.pc:lib/pkgconfig/cairn.pc \
    $(foreach f,$(wildcard include/cairn/*.h),644:$(f):$(f)) \
    $(foreach f,$(PYTHON_MODULES),644:$(f):$(f:bindings/%=lib/cairn/%)) \
    $(foreach f,$(PAGES),644:$(f):share/man/man1/$(notdir $(f))) \
    $(foreach s,$(SHELLS),644:$(BUILD)/completions/$(s))
INSTALLED_LINKS := lib/$(LIBRARY_SONAME):$(LIBRARY_FILE) lib/libcairn.so:$(LIBRARY_SONAME)
# Python leaves __pycache__ beside the modules that it has run.
PYTHON_FOLDERS := $(sort $(dir $(PYTHON_MODULES:bindings/%=lib/cairn/%)))
$(BUILD)/cairn.pc: client/cairn.pc.in include/cairn/client.h FORCE
	$(Q)mkdir -p $(@D) && sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(LIBRARY_VERSION)|' $< > $@
install: all manual $(BUILD)/cairn.pc
	$(Q)set -e; for file in $(INSTALLED); do IFS=:; set -- $$file; unset IFS; \
	    install -D -m $$1 $$2 $(DESTDIR)$(PREFIX)/$$3; done; \
	for link in $(INSTALLED_LINKS); do \
	    ln -sfn $${link#*:} $(DESTDIR)$(PREFIX)/$${link%%:*}; done
uninstall:
	$(Q)cd $(DESTDIR)$(PREFIX) && rm -rf $(PYTHON_FOLDERS:%=%__pycache__) && \
	    rm -f $(foreach f,$(INSTALLED),$(lastword $(subst :, ,$(f)))) \
	    $(foreach l,$(INSTALLED_LINKS),$(firstword $(subst :, ,$(l)))) && \
	    for folder in lib/cairn include/cairn; do [ ! -d $$folder ] || \
	    find $$folder -depth -type d -exec rmdir --ignore-fail-on-non-empty {} +; done
# packaging/README.md
RELEASE = $(shell sed -n 's/^static const char release\[\] = "\(.*\)";.*/\1/p' tools/main.c)
DEB = build/deb/cairn_$(RELEASE)_$(shell dpkg --print-architecture).deb
.PHONY: deb
deb:
	$(Q)rm -rf $(BUILD)/deb && \
	    $(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(BUILD)/deb && \
	    packaging/deb.sh $(BUILD)/deb $(RELEASE) $(DEB)

# The simulator: the protocol's own files, compiled with planted bugs; the product has none of them.
SIM_LAYOUT := box layout share manifest manifest_check reshard_tiling reshard_boxes reshard_pieces \
              reshard_report shard_seal tiling tiling_audit tiling_pieces
SIM_BASE := array crc crc_x86 wire codec text log log_json err clock
SIM_SRC  := $(wildcard tests/sim/*.c agent/core/*.c agent/core/*/*.c erasure/*.c) \
            $(SIM_LAYOUT:%=snapshot/%.c) $(SIM_BASE:%=base/%.c)
SIM_OBJ  := $(patsubst %.c,$(BUILD)/sim/%.o,$(SIM_SRC))
# Functions of a library may be replaced by others, these are inlined: 1.5 times as fast.
INLINING := $(if $(SAN),,$(if $(findstring gcc,$(CC)),-fPIE -O3 -flto=auto))
# Without warnings, which each file has had. gold would not look for libgcc again.
LINK_INLINED = $(CC) $(CFLAGS) $(INLINING) -w $(PRODUCT_LDFLAGS)
$(BUILD)/sim/%.o: %.c $(BUILD)/flags
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS) -DCAIRN_PLANTED_BUGS $(CFLAGS) $(INLINING) \
	    $(CFLAGS_EXTRA) -MMD -MP -c -o $@ $<
$(BUILD)/sim/sim: $(SIM_OBJ) $(BUILD)/sim/transport/seal.o
	$(Q)$(LINK_INLINED) -o $@ $^ -lisal -lcrypto -lm
SEEDS  ?= 10000
SEED   ?=
AGENTS ?=
sim: $(BUILD)/sim/sim
	$(Q)$(BUILD)/sim/sim \
	    $(if $(AGENTS),--agents $(AGENTS),$(if $(SEED),--seed $(SEED),--seeds $(SEEDS)))

# The simulator of placements: the analyst's and the ranks' state machines with planted bugs. The
# planner is the product's archive.
PLACEMENTS_SRC := $(wildcard tests/placements/*.c) client/placement.c \
                  $(patsubst %,agent/service/%.c,analyst proposal proposal_decide proposal_pack \
                      proposal_plan proposal_shape) \
                  $(patsubst %,client/%.c,session session_up session_down)
PLACEMENTS_OBJ := $(PLACEMENTS_SRC:%.c=$(BUILD)/sim/%.o)
$(PLACEMENTS_OBJ): CFLAGS_EXTRA += -include tests/placements/limits.h
$(BUILD)/sim/placements: $(PLACEMENTS_OBJ) $(BUILD)/libreplan.a $(BUILD)/libsnapshot.a \
    $(BUILD)/libbase.a
	$(Q)$(LINK_INLINED) -o $@ $(filter %.o,$^) $(LINK_ARCHIVES) $(LIBS_ALL)
placements: $(BUILD)/sim/placements
	$(Q)$(BUILD)/sim/placements $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# The explorer: the same files, whose memory it copies away and back (tests/explore/arena.h).
# SECONDS=N of the processor, at most STATES=N of each world, fail below LEAST=N states of all;
# WORLD=NAME, BUG=N or BUGS=1
EXPLORE_SRC := $(wildcard tests/explore/*.c) $(filter-out tests/sim/%,$(SIM_SRC))
$(BUILD)/explore/%.o: %.c $(BUILD)/flags
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS) -DCAIRN_PLANTED_BUGS -include tests/explore/arena.h \
	    $(CFLAGS) $(CFLAGS_EXTRA) -MMD -MP -c -o $@ $<
$(BUILD)/explore/explore: $(EXPLORE_SRC:%.c=$(BUILD)/explore/%.o)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lisal -lm
SECONDS ?= 120
LEAST   ?= $(if $(WORLD),0,10000000)
explore: $(BUILD)/explore/explore
	$(Q)$(BUILD)/explore/explore --seconds $(SECONDS) $(if $(STATES),--states $(STATES)) \
	    --least $(LEAST) $(if $(WORLD),--world "$(WORLD)") $(if $(BUG),--bug $(BUG)) \
	    $(if $(BUGS),--bugs)

# A file includes and calls only what its room may use.
.PHONY: layers-objects
layers-objects: $(ARCHIVES) $(NCCL_OBJ) $(GPT_OBJ)
layers: layers-objects
	$(Q)python3 tests/layers.py --calls $(BUILD)
headers:
	$(Q)for h in $(filter-out examples/% tests/%,$(filter %.h,$(C_FILES))); do \
	    $(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused -fsyntax-only -x c $$h || exit 1; done
# One line per stage: value, floor and ratio of one run. `cairn bench STAGE` shows every case.
# ARGS=--scale: how costs grow with agents and state, a quarter of an hour;
# tests/cluster/bench_scale.py has more options.
bench: $(BUILD)/cairn
	$(Q)$(if $(findstring --scale,$(ARGS)),python3 tests/cluster/bench_scale.py $(ARGS),\
	    $(BUILD)/cairn bench all)
clean:
	rm -rf build lib cairn
-include $(shell find $(BUILD) -name '*.d' -type f 2>/dev/null)
