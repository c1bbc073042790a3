// SPDX-License-Identifier: Apache-2.0
//
// X2. Style: pins and images of the tree against the table of versions.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using PinAt = Located<config::Pin>;

std::string_view public_part(std::string_view version) { return version.substr(0, version.find('+')); }

std::string list_of(const std::vector<std::string>& items, size_t most = 5) {
  std::string s;
  for (size_t i = 0; i < items.size() && i < most; ++i) s += (i ? ", " : "") + items[i];
  if (items.size() > most) s += ", ...";
  return s;
}

// torch_npu releases of the table that belong to this torch.
std::vector<std::string> releases_for(const Facts& facts, std::string_view torch) {
  std::vector<std::string> out;
  for (const VersionRow& r : facts.versions()) {
    if (compare_versions(r.torch, torch) == 0 && std::find(out.begin(), out.end(), r.torch_npu) == out.end()) out.push_back(r.torch_npu);
  }
  return out;
}

// The CANN version in an image's tag ("8.2.rc1-910b-ubuntu22.04-py3.11" gives "8.2.rc1"), where the image is a CANN image.
std::string cann_of(const config::Image& image) {
  const std::string name = lower(image.name);
  if (!contains(name, "cann") && !contains(name, "ascend")) return {};
  const size_t end = image.tag.find('-');
  const std::string v = image.tag.substr(0, end);
  return !v.empty() && v[0] >= '5' && v[0] <= '9' && v.find('.') != v.npos ? v : std::string();
}

const PinAt* pin_in(const Tree& tree, std::string_view path, std::string_view package) {
  for (const PinAt& p : tree.pins) {
    if (p.location.path == path && p.value.package == package && !p.value.version.empty()) return &p;
  }
  return nullptr;
}

void check_torch_npu(const Tree& tree, const PinAt& pin, Report& out) {
  const std::string_view version = public_part(pin.value.version);
  const auto rows = out.facts.rows_of_torch_npu(version);
  const PinAt* torch = pin_in(tree, pin.location.path, "torch");
  if (rows.empty()) {
    std::vector<std::string> near;
    for (const VersionRow& r : out.facts.versions()) {
      if (compare_versions(r.torch, version.substr(0, version.find(".post"))) == 0 && std::find(near.begin(), near.end(), r.torch_npu) == near.end()) near.push_back(r.torch_npu);
    }
    Finding& f = out.add(pin, Confidence::kCertain, "torch-npu " + std::string(version) + " is not in the table of releases" + (near.empty() ? "" : "; for that torch there are " + list_of(near)));
    f.fix = near.empty() ? "torch-npu " + out.facts.recommended().torch_npu + " with torch " + out.facts.recommended().torch + " and CANN " + out.facts.recommended().cann + "." : "torch-npu==" + near.front() + ".";
    return;
  }
  if (torch && compare_versions(public_part(torch->value.version), rows.front()->torch) != 0) {
    Finding& f = out.add(pin, Confidence::kCertain, "torch-npu " + std::string(version) + " belongs to torch " + rows.front()->torch + ", and torch " + torch->value.version + " is pinned beside it: the import fails or crashes");
    f.severity = Severity::kBlocks;
    f.related.push_back({torch->location, "torch " + torch->value.version});
    const auto fitting = releases_for(out.facts, public_part(torch->value.version));
    f.fix = fitting.empty() ? "torch==" + rows.front()->torch + "." : "torch-npu==" + fitting.front() + ", or torch==" + rows.front()->torch + ".";
  }
  // Images of the same tree that carry CANN.
  for (const auto& image : tree.images) {
    const std::string cann = cann_of(image.value);
    if (cann.empty()) continue;
    const bool fits = std::any_of(rows.begin(), rows.end(), [&](const VersionRow* r) { return compare_versions(r->cann, cann) == 0; });
    if (fits) continue;
    std::vector<std::string> wanted;
    for (const VersionRow* r : rows) wanted.push_back(r->cann);
    Finding& f = out.add(image, Confidence::kLikely, "an image with CANN " + cann + ", while torch-npu " + std::string(version) + " was released for CANN " + list_of(wanted));
    f.related.push_back({pin.location, "torch-npu " + std::string(version)});
    f.fix = "An image with CANN " + wanted.front() + ", or the torch-npu release for CANN " + cann + ".";
  }
}

void check_image(const Located<config::Image>& image, Report& out) {
  const std::string name = lower(image.value.name);
  if (name == "nvidia/cuda" || name.ends_with("/nvidia/cuda") || name.starts_with("nvcr.io/") || (name == "pytorch/pytorch" && contains(lower(image.value.tag), "cuda"))) {
    Finding& f = out.add(image, Confidence::kCertain, "the image " + image.value.name + (image.value.tag.empty() ? "" : ":" + image.value.tag) + " is CUDA's; it has neither driver libraries nor CANN");
    f.severity = Severity::kBlocks;
    f.fix = "A CANN image for the SoC, with CANN " + out.facts.recommended().cann + " and torch-npu " + out.facts.recommended().torch_npu + ".";
    return;
  }
  const std::string cann = cann_of(image.value);
  if (cann.empty()) return;
  const std::string_view first = out.facts.first_cann(out.soc);
  if (!first.empty() && compare_versions(cann, first) < 0) {
    Finding& f = out.add(image, Confidence::kCertain, "CANN " + cann + " is older than the first for " + soc_name(out.soc) + ", which is " + std::string(first));
    f.severity = Severity::kBlocks;
    f.fix = "CANN " + out.facts.recommended().cann + ".";
  }
  const std::string tag = lower(image.value.tag);
  const bool wants_950 = out.soc == Soc::k950Pr || out.soc == Soc::k950Dt;
  if (out.soc != Soc::kUnknown && ((contains(tag, "910b") && out.soc != Soc::kA2) || (contains(tag, "-a3") && out.soc != Soc::kA3) || (contains(tag, "-950") && !wants_950))) {
    Finding& f = out.add(image, Confidence::kCertain, "the image's tag names another chip than the target " + std::string(soc_name(out.soc)) + "; its kernel package does not hold that chip's kernels");
    f.severity = Severity::kBlocks;
  }
}

void whole_tree(const Tree& tree, Report& out) {
  for (const auto& image : tree.images) check_image(image, out);
  for (const PinAt& pin : tree.pins) {
    const config::Pin& p = pin.value;
    if (p.package == "torch-npu") {
      if (!p.version.empty() && p.version.find('*') == p.version.npos) {
        check_torch_npu(tree, pin, out);
      } else {
        const PinAt* torch = pin_in(tree, pin.location.path, "torch");
        std::string fix;
        if (torch) {
          const auto fitting = releases_for(out.facts, public_part(torch->value.version));
          if (!fitting.empty()) fix = "torch-npu==" + fitting.front() + " for torch " + torch->value.version + ".";
        }
        Finding& f = out.add(pin, Confidence::kLikely, "torch-npu without an exact version: each release fits one torch and one CANN, and the newest need not fit yours");
        f.fix = fix.empty() ? "torch-npu==" + out.facts.recommended().torch_npu + " with torch==" + out.facts.recommended().torch + " and CANN " + out.facts.recommended().cann + "." : fix;
      }
    }
    if (is_one_of(p.package, {"torch", "torchvision", "torchaudio"}) && contains(p.version, "+cu")) {
      Finding& f = out.add(pin, Confidence::kCertain, p.package + " " + p.version + " is built for CUDA; torch-npu wants the CPU build of the same version");
      f.severity = Severity::kBlocks;
      f.fix = p.package + "==" + std::string(public_part(p.version)) + " (CPU), with the torch-npu release of that version.";
    }
    if (p.package.starts_with("nvidia-") && (contains(p.package, "-cu1") || is_one_of(p.package, {"nvidia-ml-py", "nvidia-ml-py3"}))) {
      out.add(pin, Confidence::kCertain, "package " + p.package + " is part of CUDA").severity = Severity::kBlocks;
    }
    // Frameworks that name their own set.
    if (p.version.empty()) continue;
    const Json* frameworks = out.facts.versions_json().find("frameworks");
    if (!frameworks || !frameworks->is_array()) continue;
    for (const Json& row : frameworks->as_array()) {
      const Json *product = row.find("product"), *version = row.find("version"), *npu = row.find("torch_npu");
      if (!product || !version || !npu || !product->is_string() || !version->is_string() || !npu->is_string() || product->as_string() != p.package || version->as_string() != p.version) continue;
      const PinAt* pinned = pin_in(tree, pin.location.path, "torch-npu");
      if (!pinned || compare_versions(pinned->value.version, npu->as_string()) == 0) continue;
      Finding& f = out.add(*pinned, Confidence::kCertain, p.package + " " + p.version + " wants torch-npu " + std::string(npu->as_string()) + ", and " + pinned->value.version + " is pinned");
      f.related.push_back({pin.location, p.package + " " + p.version});
      f.fix = "torch-npu==" + std::string(npu->as_string()) + ".";
    }
  }
}

}  // namespace

const Rule& x02_versions() {
  static constexpr Rule kRule = {
      .id = "X2",
      .name = "versions",
      .title = "Versions that do not belong together",
      .severity = Severity::kVersion,
      .why = "torch, torch-npu, CANN and the driver are released as sets. A torch-npu of another torch fails at import (or crashes later); a CANN older than the chip has no kernels for it.",
      .fix = "Take one row of the official table and pin it exactly in every file.",
      .versions = "the table is data (cann_versions.json, --data)",
      .source = "Ascend/pytorch COMPATIBILITY; CANN release notes",
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
