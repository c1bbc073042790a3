// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/model_class.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;

struct Operator {
  std::string_view name, instead;
};
constexpr Operator kOperators[] = {
    {"nms", "torch_npu.npu_nms_v4 or npu_nms_with_mask, or torchvision_npu, which registers torchvision's own name; a few hundred boxes are as well done on the CPU."},
    {"batched_nms", "torchvision_npu, or offset the boxes per class and call torch_npu.npu_nms_v4. Not npu_batch_nms: its kernel is unmaintained."},
    {"roi_align", "torchvision_npu, or torch_npu.npu_roi_align."},
    {"deform_conv2d", "torch_npu.npu_deformable_conv2d, or torchvision_npu."},
    {"ps_roi_align", "torchvision_npu; otherwise it runs on the CPU."},
    {"ps_roi_pool", "torchvision_npu; otherwise it runs on the CPU."},
    {"roi_pool", "torchvision_npu; otherwise it runs on the CPU."},
    {"DeformConv2d", "torch_npu.contrib.module.ModulatedDeformConv, or torchvision_npu."},
    {"RoIAlign", "torchvision_npu, or torch_npu.npu_roi_align."},
};

void python_file(const python::Module& m, Report& out) {
  note_signs(m, {"Detector", "YOLO", "BBox", "bbox"}, {"torchvision.ops", "torchvision.models", "mmcv", "mmdet", "detectron2", "ultralytics"}, out);
  const bool plugin = m.imports_module("torchvision_npu");
  for (const Expr* c : m.calls()) {
    if (python::runs_only_on_cuda(*c)) continue;
    const std::string_view name = c->last_name();
    if (python::is_under(*c, "torchvision.ops") || python::is_under(*c, "torch.ops.torchvision")) {
      for (const Operator& o : kOperators) {
        if (o.name != name || plugin) continue;
        Finding& f = out.add(*c->callee(), "torchvision's " + std::string(name) + " has no NPU kernel without the plugin torchvision_npu: it falls back to the CPU or fails");
        f.severity = Severity::kPerformance;
        f.fix = std::string(o.instead);
      }
    } else if (python::is_under(*c, "mmcv.ops")) {
      Finding& f = out.add(*c->callee(), "mmcv's operators are compiled for the device; the package from PyPI has none for NPUs");
      f.severity = Severity::kVersion;
      f.fix = "Build mmcv with MMCV_WITH_OPS=1 and FORCE_NPU=1 against the torch_npu in use; see its list of operators for NPUs.";
    } else if (name == "npu_batch_nms" && (python::is_under(*c, "torch_npu") || python::is_under(*c, "torch.ops.npu"))) {
      Finding& f = out.add(*c->callee(), "npu_batch_nms is deprecated and its kernel unmaintained");
      f.severity = Severity::kVersion;
      f.fix = "torch_npu.npu_nms_v4 or npu_nms_with_mask.";
    }
  }
}

void whole_tree(const Tree& tree, Report& out) { report_class(tree, ModelClass::kVision, "T3", out); }

}  // namespace

const Rule& t3_vision_model() {
  static constexpr Rule kRule = {
      .id = "T3",
      .name = "vision-model",
      .title = "Port of a vision model",
      .severity = Severity::kInfo,
      .why = "Convolutions and transforms map one to one. Operators of detection (non-maximum suppression, RoI pooling, deformable convolution) are compiled extensions of torchvision "
             "and mmcv with CUDA and CPU kernels.",
      .fix = "torchvision_npu, or torch_npu.npu_nms_v4 / npu_nms_with_mask / npu_roi_align / npu_deformable_conv2d. Not npu_batch_nms, which is deprecated.",
      .versions = "all; npu_nms_with_mask is adapted to 950 from CANN 9.1",
      .source = "pitfall table, vision and detection; op-plugin names; torch_npu documentation of deprecated operators",
      .python = python_file,
      .verdict = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
