#include "program/programs/indexing.h"

#include <algorithm>
#include <string>

#include "device/abi.h"
#include "support/error.h"

namespace onnxopt {
namespace {

void Require(bool holds, const std::string& problem) {
  if (!holds) throw Error("index: " + problem);
}

void VerifyExtent(const Extent& extent, std::size_t symbols, const std::string& where) {
  for (const std::uint32_t s : extent.symbols) Require(s < symbols, where + " has a symbol that is not there");
}

void VerifyTerms(const std::vector<IndexTerm>& terms, std::size_t symbols, const std::string& where) {
  Require(terms.size() <= static_cast<std::size_t>(kMaxTerms), where + " has too many terms");
  for (const IndexTerm& term : terms) {
    for (const Extent* e : {&term.div, &term.mod, &term.stride}) VerifyExtent(*e, symbols, where);
    Require(term.div.factor > 0 && term.mod.factor > 0, where + " divides by less than 1");
  }
}

std::string Spell(const std::vector<Extent>& dims) {
  std::string text = "[";
  for (std::size_t k = 0; k < dims.size(); ++k) {
    if (k > 0) text += ", ";
    text += dims[k].symbols.empty() ? std::to_string(dims[k].factor) : "?";
  }
  return text + "]";
}

}  // namespace

std::int64_t Extent::Value(const std::vector<std::int64_t>& sizes) const {
  std::int64_t product = factor;
  for (const std::uint32_t s : symbols) {
    if (__builtin_mul_overflow(product, sizes[s], &product)) throw Error("a tensor has more than 2^63 elements");
  }
  return product;
}

bool Indexing::LooksUp() const {
  return std::any_of(accesses.begin(), accesses.end(), [](const InputAccess& a) { return a.lookup.has_value(); });
}

void Indexing::Verify(std::size_t inputs, std::size_t outputs) const {
  Require(dims.size() == inputs && shapes.size() == outputs, "dims or shapes do not match the inputs or outputs");
  for (const auto* rows : {&dims, &shapes}) {
    for (const std::vector<Extent>& row : *rows) {
      Require(row.size() <= kMaxRank, "a rank is too high");
      VerifyExtents(row, "a dim");
    }
  }
  for (const Symbol& s : symbols) {
    Require(s.input < inputs && s.axis < dims[s.input].size(), "a symbol is found in no input");
    const Extent& dim = dims[s.input][s.axis];
    Require(dim.factor > 0 && dim.symbols.size() == 1 && &symbols[dim.symbols[0]] == &s,
            "a symbol is not in the dim that it is found in");
  }
  Require(!accesses.empty() && accesses.size() <= kMaxInputs, "has no accesses, or too many");
  Require(conditions.size() <= kMaxConditions, "has too many conditions");
  for (const InputAccess& a : accesses) {
    Require(a.input < inputs, "an access reads no input");
    for (const Extent& e : a.offset) VerifyExtent(e, symbols.size(), "an access");
    VerifyTerms(a.terms, symbols.size(), "an access");
    for (const std::uint32_t g : a.guards) Require(g < conditions.size(), "an access has a guard that is not there");
    if (!a.lookup) continue;
    Require(a.terms.size() < static_cast<std::size_t>(kMaxTerms), "an access with a lookup has too many terms");
    VerifyExtents({a.lookup->size, a.lookup->stride}, "a lookup");
  }
  for (const IndexCondition& c : conditions) {
    VerifyTerms(c.terms, symbols.size(), "a condition");
    for (const auto* bound : {&c.low, &c.high}) {
      for (const Extent& e : *bound) VerifyExtent(e, symbols.size(), "a condition");
    }
  }
}

void Indexing::VerifyExtents(const std::vector<Extent>& extents, const std::string& where) const {
  for (const Extent& e : extents) {
    VerifyExtent(e, symbols.size(), where);
    Require(e.factor > 0, where + " is less than 1");
  }
}

Sizes::Sizes(const Indexing& indexing, const Shape* inputs, std::size_t count) : indexing_(indexing) {
  const auto fits = [&](std::size_t k) { return inputs[k].rank == indexing.dims[k].size(); };
  for (const Symbol& s : indexing.symbols) {  // a dim that is no multiple of the factor is refused below
    const std::int64_t factor = indexing.dims[s.input][s.axis].factor;
    sizes_.push_back(fits(s.input) ? inputs[s.input].dims[s.axis] / factor : 0);
  }
  for (std::size_t k = 0; k < count; ++k) {
    bool same = fits(k);
    for (std::size_t d = 0; same && d < inputs[k].rank; ++d) {
      same = inputs[k].dims[d] == indexing.dims[k][d].Value(sizes_);
    }
    if (!same) {
      throw Error("input " + std::to_string(k) + " is " + ToString(inputs[k]) + " where the model declares " +
                  Spell(indexing.dims[k]) + "; optimize the model again with the shapes that it is fed");
    }
  }
}

Shape Sizes::OutputShape(std::size_t k) const {
  Shape shape{};
  for (const Extent& e : indexing_.shapes[k]) shape.dims[shape.rank++] = e.Value(sizes_);
  return shape;
}

std::int64_t Sizes::Sum(const std::vector<Extent>& summands) const {
  std::int64_t sum = 0;
  for (const Extent& e : summands) {
    if (__builtin_add_overflow(sum, e.Value(sizes_), &sum)) throw Error("index: an offset exceeds 2^63");
  }
  return sum;
}

Access Sizes::Resolve(std::size_t k, std::int64_t* offset) const {
  const InputAccess& access = indexing_.accesses[k];
  *offset = Sum(access.offset);
  Access resolved;
  Fill(access.terms, &resolved);
  resolved.guards = 0;
  for (const std::uint32_t g : access.guards) resolved.guards |= 1U << g;
  if (access.lookup) {
    resolved.size = Value(access.lookup->size);
    resolved.step = Value(access.lookup->stride);
  }
  return resolved;
}

Condition Sizes::ResolveCondition(std::size_t k) const {
  const IndexCondition& condition = indexing_.conditions[k];
  Condition resolved{};
  Fill(condition.terms, &resolved.form);
  resolved.offset = condition.offset;
  resolved.low = Sum(condition.low);
  resolved.high = Sum(condition.high);
  return resolved;
}

void Sizes::Fill(const std::vector<IndexTerm>& terms, Access* access) const {
  access->runs = access->terms = 0;
  for (const IndexTerm& term : terms) {
    const Run run = {static_cast<std::uint64_t>(term.div.Value(sizes_)),
                     static_cast<std::uint64_t>(term.mod.Value(sizes_)), term.stride.Value(sizes_)};
    if (access->terms == 0) access->stretch = term.div.IsOne() ? run.mod : run.div;
    access->term[access->terms++] = run;
    if (run.mod != 1) access->run[access->runs++] = run;
  }
}

}  // namespace onnxopt
