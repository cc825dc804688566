#include "python/arguments.h"

#include <nanobind/stl/string.h>

#include <cctype>

namespace interlace {
namespace {

struct Named {
  Kind kind;
  const char* name;
  nb::dlpack::dtype dtype;
};

constexpr uint8_t code(nb::dlpack::dtype_code c) { return uint8_t(c); }
const Named kKinds[] = {
    {Kind::float32, "float32", {code(nb::dlpack::dtype_code::Float), 32, 1}},
    {Kind::bf16, "bfloat16", {code(nb::dlpack::dtype_code::Bfloat), 16, 1}},
    {Kind::float16, "float16", {code(nb::dlpack::dtype_code::Float), 16, 1}},
    {Kind::int64, "int64", {code(nb::dlpack::dtype_code::Int), 64, 1}},
    {Kind::int32, "int32", {code(nb::dlpack::dtype_code::Int), 32, 1}},
    {Kind::uint8, "uint8", {code(nb::dlpack::dtype_code::UInt), 8, 1}},
    {Kind::int8, "int8", {code(nb::dlpack::dtype_code::Int), 8, 1}},
    {Kind::boolean, "bool", {code(nb::dlpack::dtype_code::Bool), 8, 1}},
};

// A tensor as DLPack describes it: by torch's table of C functions where it has one (tens of nanoseconds), otherwise by nanobind's
// call of `__dlpack__` (microseconds). `holder` keeps alive what the second way made.
class Described {
 public:
  explicit Described(nb::handle tensor) {
    if (const DLTensorOf function = quick(tensor)) {
      good_ = function(tensor.ptr(), &tensor_) == 0;
      if (!good_) PyErr_Clear();
      return;
    }
    try {
      good_ = nb::try_cast(tensor, holder_);
    } catch (const std::exception&) {
      PyErr_Clear();
    }
    if (!good_) return;
    for (size_t i = 0; i < holder_.ndim() && i < 8; ++i) {
      shape_[i] = int64_t(holder_.shape(i));
      strides_[i] = holder_.stride(i);
    }
    tensor_.data = holder_.data();
    tensor_.device = {holder_.device_type(), holder_.device_id()};
    tensor_.ndim = int32_t(holder_.ndim());
    tensor_.dtype = holder_.dtype();
    tensor_.shape = shape_;
    tensor_.strides = strides_;
    tensor_.byte_offset = 0;
  }
  bool good() const { return good_; }
  const nb::dlpack::dltensor& operator*() const { return tensor_; }

 private:
  using DLTensorOf = int (*)(void*, nb::dlpack::dltensor*);

  // The head of DLPackExchangeAPI, version 1 (dlpack.h 1.2).
  struct Exchange {
    uint32_t major, minor;
    void* previous;
    void *allocate, *from_object, *to_object;
    DLTensorOf describe;
  };

  // The function belongs to a type; torch's own two (Tensor, Parameter) are remembered.
  static DLTensorOf quick(nb::handle tensor) {
    static PyTypeObject* types[2] = {};
    static DLTensorOf functions[2] = {};
    PyTypeObject* type = Py_TYPE(tensor.ptr());
    for (int i = 0; i < 2; ++i)
      if (types[i] == type) return functions[i];
    nb::object table = nb::getattr(nb::handle((PyObject*)type), "__dlpack_c_exchange_api__", nb::none());
    if (table.is_none()) return nullptr;
    auto* exchange = static_cast<Exchange*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
    if (!exchange) PyErr_Clear();
    if (!exchange || exchange->major != 1) return nullptr;
    for (int i = 0; i < 2; ++i) {
      if (types[i]) continue;
      functions[i] = exchange->describe;
      types[i] = type;
      nb::handle((PyObject*)type).inc_ref();
      break;
    }
    return exchange->describe;
  }

  nb::dlpack::dltensor tensor_{};
  nb::ndarray<> holder_;
  int64_t shape_[8] = {}, strides_[8] = {};
  bool good_ = false;
};

const char* name_of(Kind kind) {
  for (const Named& named : kKinds)
    if (named.kind == kind) return named.name;
  return "?";
}

std::string text(const nb::dlpack::dltensor& array) {
  std::string out;
  const nb::dlpack::dtype dtype = array.dtype;
  const char* name = "another dtype";
  for (const Named& named : kKinds)
    if (named.dtype == dtype) name = named.name;
  out += name;
  out += " [";
  for (int i = 0; i < array.ndim; ++i) out += (i ? ", " : "") + std::to_string(array.shape[i]);
  return out + "]";
}

std::string wanted(std::initializer_list<Kind> kinds, std::initializer_list<const char*> shape) {
  std::string out;
  for (Kind kind : kinds) out += (out.empty() ? "" : " or ") + std::string(name_of(kind));
  out += " [";
  bool first = true;
  for (const char* letter : shape) {
    out += (first ? "" : ", ") + std::string(letter);
    first = false;
  }
  return out + "]";
}

}  // namespace

Kept::Place Kept::place_of(nb::handle tensor) {
  const Described described(tensor);
  if (!described.good()) return {nullptr, -1, 0};
  const nb::dlpack::dltensor& array = *described;
  int64_t count = 1;
  for (int i = 0; i < array.ndim; ++i) count *= array.shape[i];
  return {static_cast<char*>(array.data) + array.byte_offset, count, array.dtype.code << 8 | array.dtype.bits};
}

void Kept::keep(nb::handle given) {
  if (given.is_none()) return;
  if (nb::isinstance<nb::tuple>(given)) {
    for (nb::handle part : nb::borrow<nb::tuple>(given)) keep(part);
    return;
  }
  tensors_.push_back(nb::borrow(given));
  places_.push_back(place_of(given));
}

bool Kept::same() const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!(place_of(tensors_[i]) == places_[i])) return false;
  return true;
}

Array Arguments::take(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds,
                      std::initializer_list<const char*> shape, Layout layout) {
  const Described described(tensor);
  if (!described.good())
    refuse(std::string(name) + " must be a tensor on the CPU without gradient, " + wanted(kinds, shape) + ", got " +
           nb::cast<std::string>(tensor.type().attr("__name__")));
  const nb::dlpack::dltensor& array = *described;
  if (array.device.device_type != nb::device::cpu::value)
    refuse(std::string(name) + " must be on the CPU, got a tensor of another device; move it there");
  Array out;
  out.rank = array.ndim;
  bool known = false;
  for (const Named& named : kKinds) {
    if (!(named.dtype == array.dtype)) continue;
    for (Kind kind : kinds)
      if (kind == named.kind) out.kind = kind, known = true;
  }
  if (!known || size_t(array.ndim) != shape.size())
    refuse(std::string(name) + " must be " + wanted(kinds, shape) + ", got " + text(array));
  out.data = static_cast<char*>(array.data) + array.byte_offset;
  int axis = 0;
  bool empty = false;
  for (const char* letter : shape) {
    out.size[axis] = array.shape[axis];
    out.stride[axis] = array.strides[axis];
    empty |= out.size[axis] == 0;
    if (std::isdigit(static_cast<unsigned char>(letter[0]))) {
      if (out.size[axis] != std::stoll(letter))
        refuse(std::string(name) + " must be " + wanted(kinds, shape) + ", got " + text(array));
    } else {
      bind(letter, out.size[axis], name);
    }
    ++axis;
  }
  // a stride that no step is taken along may be anything; here it becomes what a dense tensor has
  int64_t dense = 1;
  for (int i = out.rank - 1; i >= 0; --i) {
    if (out.size[i] <= 1 || empty) out.stride[i] = dense;
    const bool ok = (layout == Layout::dense || i == out.rank - 1) ? out.stride[i] == dense : out.stride[i] >= 0;
    if (!ok)
      refuse(std::string(name) + (layout == Layout::dense ? " must be contiguous" : " must be contiguous along its last axis") +
             ", got stride " + std::to_string(out.stride[i]) + " on axis " + std::to_string(i) + "; pass .contiguous()");
    dense *= out.size[i] > 0 ? out.size[i] : 1;
  }
  return out;
}

Array Arguments::take_rows(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds, const char* rows, const char* width) {
  int rank = 2;
  {
    const Described described(tensor);
    if (described.good()) rank = (*described).ndim;
  }
  if (rank == 2) return take(tensor, name, kinds, {rows, width}, Layout::rows);
  static const char* const axes[] = {" 0", " 1", " 2", " 3", " 4", " 5"};
  if (rank < 1 || rank > 6) refuse(std::string(name) + " must have 1 to 6 axes, got " + std::to_string(rank));
  // the axes in front are this tensor's own
  const int before = count_;
  Array whole;
  switch (rank) {
    case 1: whole = take(tensor, name, kinds, {axes[0]}); break;
    case 3: whole = take(tensor, name, kinds, {axes[0], axes[1], axes[2]}); break;
    case 4: whole = take(tensor, name, kinds, {axes[0], axes[1], axes[2], axes[3]}); break;
    case 5: whole = take(tensor, name, kinds, {axes[0], axes[1], axes[2], axes[3], axes[4]}); break;
    default: whole = take(tensor, name, kinds, {axes[0], axes[1], axes[2], axes[3], axes[4], axes[5]}); break;
  }
  count_ = before;
  Array out = whole;
  out.rank = 2, out.size[0] = 1, out.size[1] = whole.size[rank - 1];
  for (int i = 0; i + 1 < rank; ++i) out.size[0] *= whole.size[i];
  out.stride[0] = out.size[1], out.stride[1] = 1;
  bind(rows, out.size[0], name);
  bind(width, out.size[1], name);
  return out;
}

Array Arguments::take_optional(nb::handle tensor, const char* name, std::initializer_list<Kind> kinds,
                               std::initializer_list<const char*> shape, Layout layout) {
  return tensor.is_none() ? Array{} : take(tensor, name, kinds, shape, layout);
}

int64_t Arguments::size(const char* letter) const {
  for (int i = 0; i < count_; ++i)
    if (bound_[i].letter == letter) return bound_[i].value;
  refuse(std::string("no size ") + letter);
}

void Arguments::bind(const char* letter, int64_t value, const char* name) {
  for (int i = 0; i < count_; ++i) {
    if (bound_[i].letter != letter) continue;
    if (bound_[i].value == value) return;
    refuse(std::string(name) + " has " + letter + " = " + std::to_string(value) + " where " + bound_[i].from + " has " +
           std::to_string(bound_[i].value) + "; they must agree");
  }
  if (count_ == 24) refuse("too many sizes");
  bound_[count_++] = {letter, value, name};
}

void Arguments::require(bool met, const std::string& what) const {
  if (!met) refuse(what);
}

void Arguments::refuse(const std::string& what) const {
  throw nb::value_error((std::string(call_) + ": " + what).c_str());
}

}  // namespace interlace
