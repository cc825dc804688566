// Tensors from Python, checked by name before a kernel sees a pointer. Nothing is copied or converted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace interlace {
namespace nb = nanobind;

enum class Kind { float32, bf16, float16, int64, int32, uint8, int8, boolean };

// One tensor of a call: a pointer, sizes and strides in elements.
struct Array {
  void* data = nullptr;
  Kind kind{};
  int rank = 0;
  int64_t size[8] = {};
  int64_t stride[8] = {};

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// How a tensor may lie in memory.
enum class Layout {
  dense,  // row-major without gaps
  rows,   // the last axis without gaps; the others with any stride of at least 0
};

// Tensors whose memory a call will read later. `same` is false once one of them has other memory, size or dtype: then what was taken from
// them must be taken again.
class Kept {
 public:
  // Tensors, pairs of tensors and None.
  void keep(nb::handle given);
  bool same() const;

 private:
  struct Place {
    const void* data;
    int64_t count;
    int bits;
    bool operator==(const Place&) const = default;
  };
  static Place place_of(nb::handle tensor);

  std::vector<nb::object> tensors_;
  std::vector<Place> places_;
};

// The checks of one call. A letter of a shape is bound by the first tensor that has it and must agree in all others; a shape may also hold
// numbers ("3").
class Arguments {
 public:
  explicit Arguments(const char* call) : call_(call) {}

  Array take(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds,
             std::initializer_list<const char*> shape, Layout layout = Layout::dense);
  // A tensor of any rank from 1 on as rows [rows, width]: dense, or of rank 2 with rows at any distance.
  Array take_rows(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds, const char* rows, const char* width);
  // `None` gives an Array without data.
  Array take_optional(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds,
                      std::initializer_list<const char*> shape, Layout layout = Layout::dense);
  int64_t size(const char* letter) const;
  void bind(const char* letter, int64_t value, const char* name);
  // Raises ValueError "call: what" unless `met`.
  void require(bool met, const std::string& what) const;

 private:
  [[noreturn]] void refuse(const std::string& what) const;

  const char* call_;
  int count_ = 0;
  struct {
    std::string letter;
    int64_t value;
    std::string from;  // a copy: a name may have been put together for the call
  } bound_[24];
};

}  // namespace interlace
