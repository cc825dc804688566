// Instruction sets: what this binary holds, what this machine can run, and which one is in use.
#pragma once

namespace interlace {

// In rising order: each is taken to contain those before it.
enum class Level { scalar, avx2, avx512, avx512_bf16, amx };
inline constexpr int kLevels = 5;
inline constexpr const char* kLevelNames[kLevels] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};

bool built(Level level);      // compiled into this binary
bool supported(Level level);  // built, and this processor and system can run it
Level level();                // the one in use: the highest that is supported, unless `use` chose another
bool use(Level level);        // false when it is not supported

}  // namespace interlace

// A kernel `name` takes one struct of pointers, sizes and strides. Every file in kernels/ is compiled once per level with
// INTERLACE_LEVEL set, and defines its kernel in the namespace of that name; INTERLACE_KERNEL(name, Struct) in the kernel's header
// declares all of them and `run_name`, which calls the one in use.
#define INTERLACE_DECLARE(level, name, Struct) \
  namespace level {                            \
  void name(const Struct& call);               \
  }

#ifdef INTERLACE_BUILT_AVX2
#define INTERLACE_CASE_AVX2(name) case Level::avx2: return avx2::name(call);
#else
#define INTERLACE_CASE_AVX2(name)
#endif
#ifdef INTERLACE_BUILT_AVX512
#define INTERLACE_CASE_AVX512(name) case Level::avx512: return avx512::name(call);
#else
#define INTERLACE_CASE_AVX512(name)
#endif
#ifdef INTERLACE_BUILT_AVX512_BF16
#define INTERLACE_CASE_AVX512_BF16(name) case Level::avx512_bf16: return avx512_bf16::name(call);
#else
#define INTERLACE_CASE_AVX512_BF16(name)
#endif
#ifdef INTERLACE_BUILT_AMX
#define INTERLACE_CASE_AMX(name) case Level::amx: return amx::name(call);
#else
#define INTERLACE_CASE_AMX(name)
#endif

#define INTERLACE_KERNEL(name, Struct)                \
  INTERLACE_DECLARE(scalar, name, Struct)             \
  INTERLACE_DECLARE(avx2, name, Struct)               \
  INTERLACE_DECLARE(avx512, name, Struct)             \
  INTERLACE_DECLARE(avx512_bf16, name, Struct)        \
  INTERLACE_DECLARE(amx, name, Struct)                \
  [[maybe_unused]] static inline void run_##name(const Struct& call) { \
    switch (level()) {                                \
      INTERLACE_CASE_AVX2(name)                       \
      INTERLACE_CASE_AVX512(name)                     \
      INTERLACE_CASE_AVX512_BF16(name)                \
      INTERLACE_CASE_AMX(name)                        \
      default: return scalar::name(call);             \
    }                                                 \
  }
