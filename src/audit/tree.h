// SPDX-License-Identifier: Apache-2.0
//
// What is known of the whole tree after every file has been read: for rules about several files at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "audit/config/document.h"
#include "audit/cpp/file.h"
#include "audit/finding.h"
#include "audit/python/ast.h"

namespace pointsman::audit {

template <class T>
struct Located {
  T value;
  Location location;
  std::string excerpt;  // the line, or the part of it around the place
  int excerpt_column = 1;
  std::string label;
  FileKind kind = FileKind::kUnknown;  // of the unit: kPython for os.environ[...]
};

struct Note {
  std::string rule;
  std::string key;
  std::string value;
};

struct Import {
  std::string module;  // "torch.distributed"
};

// How often a tree calls what: the statistics of a port.
struct ApiUse {
  size_t torch = 0;              // calls of torch.*, resolved, but for the two next
  size_t torch_cuda = 0;         // torch.cuda.*, and x.cuda() of whatever x is
  size_t torch_distributed = 0;  // torch.distributed.*
  size_t torch_npu = 0;          // already ported
  size_t extensions = 0;         // imports of packages with CUDA kernels of their own, and triton
  size_t cuda_runtime = 0;       // cuda*() and cu*() calls of C++
  size_t cuda_libraries = 0;     // cub::, thrust::, cutlass::, cublas*, cudnn*, nccl*
  size_t kernels = 0;            // __global__ functions, and functions under @triton.jit
  size_t launches = 0;           // kernel<<<...>>>
  ApiUse& operator+=(const ApiUse& o);
};

// What kind of model the tree is about: names and imports that speak for it, the first place of each.
struct ModelSigns {
  size_t attention = 0, experts = 0, vision = 0, reinforcement = 0;  // how often
  ModelSigns& operator+=(const ModelSigns& o);
};

// In the order of files and lines.
struct Tree {
  std::vector<std::string> files;
  std::vector<Located<config::Environment>> environment;  // also os.environ of Python
  std::vector<Located<config::Pin>> pins;                 // also install_requires of setup.py
  std::vector<Located<config::Image>> images;
  std::vector<Located<Import>> imports;
  std::vector<Located<Note>> notes;
  ApiUse api;
  ModelSigns signs;
  std::vector<Finding> findings;  // of the file callbacks, suppressed ones included

  bool imports_module(std::string_view module) const;  // the module or something below it
  // Notes of one rule with this key.
  std::vector<const Located<Note>*> notes_of(std::string_view rule, std::string_view key) const;
};

// Adds what a unit says about environment, pins, images, imports and use of APIs.
void collect_facts(const python::Module& module, Tree& tree);
void collect_facts(const cpp::File& file, Tree& tree);
void collect_facts(const config::Document& document, Tree& tree);

template <class T>
Located<T> locate(const Unit& unit, Span span, T value) {
  Unit::Excerpt e = unit.excerpt(span.begin);
  return {std::move(value), unit.location(span), std::move(e.text), e.column, unit.label_at(span.begin), unit.kind};
}

}  // namespace pointsman::audit
