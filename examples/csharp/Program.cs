// Runs an artifact from C#: dotnet run -- ARTIFACT [INPUT=1x3x48x320 ...]
//
// Needs the NuGet package Microsoft.ML.OnnxRuntime (or Microsoft.ML.OnnxRuntime.Gpu) 1.21 or later on Linux x64. The
// program runs the artifact with its library and without, and compares. Symbolic dims are 1, unless a size is given.
using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

internal static class Program
{
    private static int Main(string[] args)
    {
        if (args.Length < 1)
        {
            Console.Error.WriteLine("usage: Example ARTIFACT [INPUT=1x3x48x320 ...]");
            return 2;
        }
        try
        {
            RunArtifact(args[0], args.Skip(1).Select(argument => argument.Split('='))
                .ToDictionary(pair => pair[0], pair => pair[1].Split('x').Select(int.Parse).ToArray()));
            return 0;
        }
        catch (Exception error)
        {
            Console.Error.WriteLine($"error: {error.Message}");
            return 1;
        }
    }

    private static void RunArtifact(string folder, Dictionary<string, int[]> shapes)
    {
        using var fused = Onnxopt.Artifact.Open(folder);
        using var plain = Onnxopt.Artifact.Open(folder, library: false);
        Onnxopt.Configuration taken = fused.Configuration;
        Console.WriteLine($"ONNX Runtime from C#, providers/{taken.Name}.json: {taken.Reason}");

        List<NamedOnnxValue> inputs =
            fused.Session.InputMetadata.Select(input => MakeInput(input.Key, input.Value, shapes)).ToList();
        using var with = fused.Session.Run(inputs);
        using var without = plain.Session.Run(inputs);
        foreach (var (result, reference) in with.Zip(without, (a, b) => (a, b)))
        {
            string what = result.ElementType.ToString();
            if (result.Value is Tensor<float> values && reference.Value is Tensor<float> others)
            {
                float difference = values.Zip(others, (a, b) => Math.Abs(a - b)).Max();
                what = $"[{string.Join("x", values.Dimensions.ToArray())}]  max difference {difference:g3}";
            }
            Console.WriteLine($"  {result.Name} {what}");
        }
    }

    private static NamedOnnxValue MakeInput(string name, NodeMetadata metadata, Dictionary<string, int[]> shapes)
    {
        int[] shape = shapes.GetValueOrDefault(name, metadata.Dimensions)!.Select(d => d < 0 ? 1 : d).ToArray();
        int count = shape.Aggregate(1, (product, d) => product * d);
        if (metadata.ElementType == typeof(float))
        {
            float[] values = Enumerable.Range(0, count).Select(i => i * 37L % 101 / 101f - 0.5f).ToArray();
            return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<float>(values, shape));
        }
        if (metadata.ElementType == typeof(long))
        {
            long[] values = Enumerable.Repeat(1L, count).ToArray();  // valid as token id, as mask and as type
            return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<long>(values, shape));
        }
        throw new NotSupportedException($"input {name}: this example makes float and long inputs only");
    }
}
