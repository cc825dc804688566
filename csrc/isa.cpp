#include "isa.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace interlace {
namespace {

bool processor_has(Level level) {
#if defined(__x86_64__)
  switch (level) {
    case Level::scalar:
      return true;
    case Level::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Level::avx512:
      return processor_has(Level::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Level::avx512_bf16:
      return processor_has(Level::avx512) && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    case Level::amx: {
#if defined(__linux__)
      unsigned a, b, c, d;
      if (!processor_has(Level::avx512_bf16) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
      const bool tiles = (d >> 24) & 1, bf16 = (d >> 22) & 1;
      // the kernel gives the large tile registers only to a process that asks (ARCH_REQ_XCOMP_PERM, XTILEDATA)
      return tiles && bf16 && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
      return false;
#endif
    }
  }
  return false;
#else
  return level == Level::scalar;
#endif
}

Level highest() {
  for (int i = kLevels - 1; i > 0; --i)
    if (supported(Level(i))) return Level(i);
  return Level::scalar;
}

std::atomic<int>& chosen() {
  static std::atomic<int> value{int(highest())};
  return value;
}

}  // namespace

bool built(Level level) {
  switch (level) {
    case Level::scalar:
      return true;
#ifdef INTERLACE_BUILT_AVX2
    case Level::avx2:
      return true;
#endif
#ifdef INTERLACE_BUILT_AVX512
    case Level::avx512:
      return true;
#endif
#ifdef INTERLACE_BUILT_AVX512_BF16
    case Level::avx512_bf16:
      return true;
#endif
#ifdef INTERLACE_BUILT_AMX
    case Level::amx:
      return true;
#endif
    default:
      return false;
  }
}

bool supported(Level level) { return built(level) && processor_has(level); }

Level level() { return Level(chosen().load(std::memory_order_relaxed)); }

bool use(Level level) {
  if (!supported(level)) return false;
  chosen().store(int(level), std::memory_order_relaxed);
  return true;
}

}  // namespace interlace
